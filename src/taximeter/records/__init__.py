"""The vocabulary: immutable records that everything else makes, moves or reads. Standard library only, no I/O."""

from taximeter.records.backend import (
    Answer,
    Backend,
    ChoiceFinished,
    Event,
    FinishReason,
    MachineTime,
    ModelInfo,
    PhaseEntered,
    PositionLogprobs,
    Served,
    TokenLogprob,
    TokensGenerated,
)
from taximeter.records.basis import Basis, weakest
from taximeter.records.codec import Json, decimal_text, to_json
from taximeter.records.identity import new_id
from taximeter.records.money import (
    EXACT,
    NS_PER_HOUR,
    PICODOLLARS_PER_DOLLAR,
    Cost,
    CostLine,
    MachineRate,
    PriceList,
    Rate,
    exact_sum,
)
from taximeter.records.receipt import Outcome, Receipt, inter_token_ns
from taximeter.records.request import (
    MOST_GROUP_NAME_CHARACTERS,
    Dialect,
    Message,
    Prompt,
    Request,
    Sampling,
    is_group_name,
)
from taximeter.records.timing import Phase, Stopwatch, Timing
from taximeter.records.usage import Usage, Work

__all__ = [
    "EXACT",
    "MOST_GROUP_NAME_CHARACTERS",
    "NS_PER_HOUR",
    "PICODOLLARS_PER_DOLLAR",
    "Answer",
    "Backend",
    "Basis",
    "ChoiceFinished",
    "Cost",
    "CostLine",
    "Dialect",
    "Event",
    "FinishReason",
    "Json",
    "MachineRate",
    "MachineTime",
    "Message",
    "ModelInfo",
    "Outcome",
    "Phase",
    "PhaseEntered",
    "PositionLogprobs",
    "PriceList",
    "Prompt",
    "Rate",
    "Receipt",
    "Request",
    "Sampling",
    "Served",
    "Stopwatch",
    "Timing",
    "TokenLogprob",
    "TokensGenerated",
    "Usage",
    "Work",
    "decimal_text",
    "exact_sum",
    "inter_token_ns",
    "is_group_name",
    "new_id",
    "to_json",
    "weakest",
]
