"""A client's view of its images: rotation and noise."""

import pytest
import torch

from fedmuon.data.feature_shift import _turned, shifted


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_nothing_to_do_gives_the_images_themselves():
    batch = images(2, 3, 5, 4)
    assert shifted(batch, 0.0, 0.0) is batch


def test_quarter_turns_are_exact_and_agree_with_the_interpolation():
    batch = images(2, 3, 6, 6)
    for degrees, turns in ((90, 1), (180, 2), (-90, 3), (270, 3)):
        assert torch.equal(shifted(batch, 0, degrees), torch.rot90(batch, turns, (-2, -1)))
        assert torch.allclose(_turned(batch, torch.pi * degrees / 180), torch.rot90(batch, turns, (-2, -1)), atol=1e-12)
    oblong = images(2, 1, 4, 8)
    assert torch.equal(shifted(oblong, 0, 180), oblong.flip(-2, -1))


def test_a_small_turn_moves_a_point_counter_clockwise_whatever_the_shape():
    for height, width in ((41, 41), (41, 61)):
        batch = torch.zeros(1, 1, height, width)
        batch[0, 0, height // 2, width // 2 + 12] = 1  # twelve to the right of the centre
        turned = shifted(batch, 0.0, 30.0)[0, 0]
        row, column = divmod(int(turned.argmax()), width)
        assert (height // 2 - row, column - width // 2) == (6, 10)  # 12 sin 30, 12 cos 30, upwards


def test_noise_has_the_asked_deviation_and_follows_the_generator():
    batch = torch.zeros(50, 3, 20, 20)
    first, again, other = (shifted(batch, 0.3, 0.0, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert first.std().item() == pytest.approx(0.3, rel=0.02) and abs(first.mean().item()) < 0.01
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.dtype == batch.dtype and not batch.any()
