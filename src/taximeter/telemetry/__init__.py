"""What others may watch: Prometheus' page, OpenTelemetry's spans and metrics, and the pages of engines behind us.

`tally` adds receipts up as they come. `page` writes `/metrics` from that; `otlp` puts it and every receipt into
OpenTelemetry's terms, whose names are in `names`, and `exporter` sends it. `engines` knows the words of engines' own
pages, which `scraper` reads. `watch` joins them. The ledger has the books; no answer waits for anything here.
"""

from taximeter.telemetry.exporter import check_endpoint
from taximeter.telemetry.watch import Sources, Watch

__all__ = ["Sources", "Watch", "check_endpoint"]
