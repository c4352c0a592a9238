"""What usage and machine time cost.

Pure: usage, dated prices and machine time in, exact dollars out. Owns: finding a price (`Catalog`), multiplying by it
(`charge`), dividing an hourly rate (`MachineMeter`, `SharedMachineTariff`) and putting the result on a receipt
(`Settler`). Refuses to know: the time of day (callers pass it), wire formats, and where receipts are kept.

`Catalog` is in `pricing.catalog` and `PublishedTariff` in `pricing.tariff`: they bring a year of published prices
along, which a server that compares with nobody need not load.
"""

from taximeter.pricing.charge import charge
from taximeter.pricing.machine import MachineMeter, MachineStatement
from taximeter.pricing.settle import Comparison, Settler, Tariff
from taximeter.pricing.shared_machine import SharedMachineTariff

__all__ = [
    "Comparison",
    "MachineMeter",
    "MachineStatement",
    "Settler",
    "SharedMachineTariff",
    "Tariff",
    "charge",
]
