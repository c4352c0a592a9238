"""What usage and machine time cost.

Pure: usage, dated prices and machine time in, exact dollars out. Owns: finding a price (`Catalog`), multiplying by it
(`charge`), dividing an hourly rate (`MachineMeter`) and putting the result on a receipt (`Settler`). Refuses to know:
the time of day (callers pass it), wire formats, and where receipts are kept.
"""

from taximeter.pricing.catalog import Catalog
from taximeter.pricing.charge import charge
from taximeter.pricing.machine import MachineMeter, MachineStatement
from taximeter.pricing.settle import Settler

__all__ = ["Catalog", "MachineMeter", "MachineStatement", "Settler", "charge"]
