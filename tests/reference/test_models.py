"""The judge's models against finite differences and autograd, its polar factor against matrices known on paper."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests.reference import polar, shape_scale
from tests.reference.examples import CLOSE, MODELS, federation


@pytest.mark.parametrize("name", MODELS)
def test_gradient_equals_central_differences(name):
    x, arguments = federation(name)
    (X, y), model = arguments["clients"][0], MODELS[name][0]
    gradient = model(x, X, y)[1]
    for n, value in x.items():
        for index in np.ndindex(value.shape):
            e = np.zeros_like(value)
            e[index] = 1e-6
            slope = (model(x | {n: value + e}, X, y)[0] - model(x | {n: value - e}, X, y)[0]) / 2e-6
            assert_allclose(gradient[n][index], slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_equals_autograd_under_pytorchs_names(name):
    x, arguments = federation(name)
    X, y = arguments["clients"][0]
    nn = torch.nn
    module = {
        "mlp": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        "conv": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
    }[name]().double()
    module.load_state_dict({n: torch.from_numpy(v) for n, v in x.items()})
    loss = nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(y))
    loss.backward()
    value, gradient = MODELS[name][0](x, X, y)
    assert_allclose(value, loss.item(), **CLOSE)
    for n, p in module.named_parameters():
        assert_allclose(gradient[n], p.grad.numpy(), **CLOSE)


def test_polar_of_matrices_known_on_paper():
    assert_allclose(polar(np.array([[0.0, 2.0], [-3.0, 0.0]])), [[0, 1], [-1, 0]], atol=1e-15)
    u, v = np.array([3.0, 4.0, 0.0]), np.array([0.0, 1.0])
    assert_allclose(polar(np.outer(u, v)), np.outer(u / 5, v), atol=1e-15)  # rank one: a partial isometry
    assert_array_equal(polar(np.zeros((2, 3))), np.zeros((2, 3)))
    near = np.diag([1.0, 1e-15])  # the second value is above the rounding of a 2 x 2 matrix, 4.4e-16; then below
    assert_allclose(polar(near), np.eye(2), atol=1e-15)
    assert_allclose(polar(near**1.05), np.diag([1.0, 0.0]), atol=1e-15)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3, 3), (2, 1, 2, 2, 2)])
def test_polar_is_the_nearest_isometry_whatever_the_scale(shape):
    M = np.random.default_rng(1).standard_normal(shape)
    P = polar(M).reshape(shape[0], -1)
    gram = P @ P.T if P.shape[0] <= P.shape[1] else P.T @ P
    assert_allclose(gram, np.eye(len(gram)), atol=1e-14)
    H = P.T @ M.reshape(shape[0], -1)  # M = P H with H symmetric, positive semidefinite
    assert_allclose(H, H.T, atol=1e-13)
    assert np.linalg.eigvalsh(H).min() > -1e-13
    for c in (1e-300, 1e-30, 1e30, 1e300):
        assert_allclose(polar(c * M), polar(M), atol=1e-13)


def test_polar_of_three_dimensions_is_a_stack():
    M = np.random.default_rng(2).standard_normal((3, 4, 2))
    assert_array_equal(polar(M), np.stack([polar(m) for m in M]))
    with pytest.raises(ValueError, match="needs a matrix"):
        polar(np.ones(3))


def test_shape_scale_of_a_convolution_by_view_and_by_kernel():
    assert shape_scale((64, 1, 2, 2), "view") == 4.0
    assert shape_scale((64, 1, 2, 2), "kernel") == 1.0
    assert shape_scale((8, 2), "view") == shape_scale((8, 2), "kernel") == 2.0
    assert shape_scale((2, 8), "view") == shape_scale((64, 1, 2, 2), "none") == 1.0
    assert shape_scale((1, 9, 4), "view") == 1.5
