"""The vocabulary: immutable records that everything else makes, moves or reads. Standard library only, no I/O."""

from typing import TYPE_CHECKING, Any

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
from taximeter.records.receipt import Attempt, Outcome, Receipt, gap_ns, inter_token_ns
from taximeter.records.request import (
    LABEL_KIND,
    MOST_GROUP_NAME_CHARACTERS,
    MOST_LABELS,
    Dialect,
    Form,
    FormKind,
    Groups,
    Image,
    Message,
    Prompt,
    Request,
    Sampling,
    Tool,
    Toolbox,
    ToolCall,
    is_group_name,
    label_group,
)
from taximeter.records.task import Task, TaskVerb, TaskWindow, TaskWord, TaskWords
from taximeter.records.timing import Phase, Stopwatch, Timing
from taximeter.records.usage import Ceiling, Terms, Usage, Work

if TYPE_CHECKING:
    from taximeter.records.backend import (
        Answer,
        Backend,
        ChoiceFinished,
        EngineLoad,
        Event,
        FinishReason,
        MachineTime,
        ModelInfo,
        ModelLoad,
        PhaseEntered,
        PositionLogprobs,
        PromptRead,
        Served,
        TokenLogprob,
        TokensGenerated,
        ToolCallDelta,
    )

__all__ = [
    "EXACT",
    "LABEL_KIND",
    "MOST_GROUP_NAME_CHARACTERS",
    "MOST_LABELS",
    "NS_PER_HOUR",
    "PICODOLLARS_PER_DOLLAR",
    "Answer",
    "Attempt",
    "Backend",
    "Basis",
    "Ceiling",
    "ChoiceFinished",
    "Cost",
    "CostLine",
    "Dialect",
    "EngineLoad",
    "Event",
    "FinishReason",
    "Form",
    "FormKind",
    "Groups",
    "Image",
    "Json",
    "MachineRate",
    "MachineTime",
    "Message",
    "ModelInfo",
    "ModelLoad",
    "Outcome",
    "Phase",
    "PhaseEntered",
    "PositionLogprobs",
    "PriceList",
    "Prompt",
    "PromptRead",
    "Rate",
    "Receipt",
    "Request",
    "Sampling",
    "Served",
    "Stopwatch",
    "Task",
    "TaskVerb",
    "TaskWindow",
    "TaskWord",
    "TaskWords",
    "Terms",
    "Timing",
    "TokenLogprob",
    "TokensGenerated",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Toolbox",
    "Usage",
    "Work",
    "decimal_text",
    "exact_sum",
    "gap_ns",
    "inter_token_ns",
    "is_group_name",
    "label_group",
    "new_id",
    "to_json",
    "weakest",
]


def __getattr__(name: str) -> Any:
    """What a backend says of an answer, looked up when somebody asks: who only reads the ledger has no backend."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from taximeter.records import backend  # noqa: PLC0415 - see above

    return getattr(backend, name)
