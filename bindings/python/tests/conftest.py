import pytest

import triad

# Eight tokens of the default model's vocabulary, for what needs no text.
TOKENS = [504, 3575, 282, 4649, 314, 7042, 30, 216]


@pytest.fixture(scope="session")
def model():
    return triad.Model("smollm2-135m", context=512)


@pytest.fixture
def session(model):
    return model.session()
