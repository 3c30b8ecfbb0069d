"""Reports of runs: comparisons, tables, plots, pages, model cards."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.report.write import write_report as write_report
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
