"""A client's view of its images: rotation and noise."""

import pytest
import torch

from fedmuon import keyed
from fedmuon.data.feature_shift import Shift, _turned, shifted


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def angles(batch, degrees):
    return torch.full((len(batch),), float(degrees))


def turned_by(batch, degrees):
    return shifted(batch, None, angles(batch, degrees), torch.zeros(len(batch), dtype=torch.int32))


def test_numbers_that_are_zero_leave_an_image_as_it_is_beside_others_that_change():
    assert Shift.of([(), (0.0, 0.0)], torch.device("cpu")) is None
    shift = Shift.of([(0.0, 0.0), (0.5, 20.0)], torch.device("cpu"))
    batch = images(4, 3, 5, 4)
    found = shift(batch, torch.arange(4, dtype=torch.int32))
    assert torch.equal(found[:2], batch[:2]) and not torch.isclose(found[2:], batch[2:]).all()
    assert Shift.of([(0.5, 0.0), ()], torch.device("cpu")).degrees is None


def test_quarter_turns_are_exact_and_agree_with_the_interpolation():
    batch = images(2, 3, 6, 6)
    for degrees, turns in ((90, 1), (180, 2), (-90, 3), (270, 3)):
        assert torch.equal(turned_by(batch, degrees), torch.rot90(batch, turns, (-2, -1)))
        assert torch.allclose(_turned(batch, angles(batch, degrees)), torch.rot90(batch, turns, (-2, -1)), atol=1e-12)
    oblong = images(2, 1, 4, 8)
    assert torch.equal(turned_by(oblong, 180), oblong.flip(-2, -1))


def test_a_small_turn_moves_a_point_counter_clockwise_whatever_the_shape():
    for height, width in ((41, 41), (41, 61)):
        batch = torch.zeros(1, 1, height, width)
        batch[0, 0, height // 2, width // 2 + 12] = 1  # twelve to the right of the centre
        turned = turned_by(batch, 30)[0, 0]
        row, column = divmod(int(turned.argmax()), width)
        assert (height // 2 - row, column - width // 2) == (6, 10)  # 12 sin 30, 12 cos 30, upwards


def test_autocast_moves_no_pixel():
    shift, keys = Shift.of([(0.1, 20.0)], torch.device("cpu")), torch.arange(2, dtype=torch.int32)
    batch = images(2, 3, 32, 32).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = shift(batch, keys)
    assert torch.equal(found, shift(batch, keys))


def test_noise_has_the_asked_deviation_and_follows_the_keys():
    batch, noise = torch.zeros(50, 3, 20, 20), torch.full((50,), 0.3)
    keys = keyed.of_samples(torch.tensor(5, dtype=torch.int32), 50)
    first, again, other = (shifted(batch, noise, None, k) for k in (keys, keys, keys + 1))
    assert first.std().item() == pytest.approx(0.3, rel=0.02) and abs(first.mean().item()) < 0.01
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.dtype == batch.dtype and not batch.any()
    assert abs(torch.corrcoef(first.flatten(1))[0, 1:]).max() < 0.15, "samples have noise of their own"
