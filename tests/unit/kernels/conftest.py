"""The kernel tests run at every level that this processor has."""

from collections.abc import Iterator

import pytest

from taximeter.engine import kernels


@pytest.fixture(params=kernels.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test at one level, and restore what was chosen before."""
    with kernels.use_level(request.param):
        yield request.param
