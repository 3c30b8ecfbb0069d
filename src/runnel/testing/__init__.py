"""Public contract checks: run them on your own environment, learner, transport, engine or reward."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.testing.engines import check_engine as check_engine
    from runnel.testing.transport import (
        check_inference as check_inference,
        check_params as check_params,
        check_ranks as check_ranks,
        check_samples as check_samples,
    )
    from runnel.testing.transforms import check_transform as check_transform
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
