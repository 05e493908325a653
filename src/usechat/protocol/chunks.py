"""The chunks of the UI message stream, one class for each type of `ai` 7.0.170.

An absent field is `UNSET` and is left out on the wire, because every client refuses `null` there. Only `input`,
`output`, `data` and `messageMetadata` may be `None`, which is `null` on the wire.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import force_setattr

__all__ = [
    "CHUNK_TYPES",
    "Abort",
    "Chunk",
    "Citation",
    "Custom",
    "Data",
    "DocumentSource",
    "End",
    "Error",
    "File",
    "Finish",
    "FinishReason",
    "FinishStep",
    "MessageMetadata",
    "ProviderMetadata",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningFile",
    "ReasoningStart",
    "ResetStep",
    "SourceDocument",
    "SourceUrl",
    "Start",
    "StartStep",
    "SteeringFile",
    "SteeringMessage",
    "SteeringText",
    "TextChunk",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ToolApprovalRequest",
    "ToolApprovalResponse",
    "ToolInput",
    "ToolInputAvailable",
    "ToolInputDelta",
    "ToolInputError",
    "ToolInputStart",
    "ToolOutput",
    "ToolOutputAvailable",
    "ToolOutputDenied",
    "ToolOutputError",
    "UrlSource",
    "chunk_type",
]

ProviderMetadata: TypeAlias = dict[str, dict[str, Any]]
FinishReason: TypeAlias = Literal["stop", "length", "content-filter", "tool-calls", "error", "interrupted", "other"]

_Metadata: TypeAlias = ProviderMetadata | UnsetType
_Str: TypeAlias = str | UnsetType
_Bool: TypeAlias = bool | UnsetType
_Object: TypeAlias = dict[str, Any] | UnsetType
_MOST: Final = 2**53 - 1
# To JavaScript, 3.0 is 3.
_Index: TypeAlias = (
    Annotated[int, Meta(ge=0, le=_MOST)] | Annotated[float, Meta(ge=0, le=_MOST, multiple_of=1)] | UnsetType
)


class _Chunk(Struct, frozen=True, rename="camel", tag_field="type", tag="", gc=False):
    pass


class Start(_Chunk, frozen=True, tag="start"):
    message_id: _Str = UNSET
    message_metadata: Any = UNSET


class Finish(_Chunk, frozen=True, tag="finish"):
    finish_reason: FinishReason | UnsetType = UNSET
    message_metadata: Any = UNSET


class Abort(_Chunk, frozen=True, tag="abort"):
    reason: _Str = UNSET


class Error(_Chunk, frozen=True, tag="error"):
    error_text: str


class MessageMetadata(_Chunk, frozen=True, tag="message-metadata"):
    message_metadata: Any


class StartStep(_Chunk, frozen=True, tag="start-step"):
    pass


class FinishStep(_Chunk, frozen=True, tag="finish-step"):
    pass


class ResetStep(_Chunk, frozen=True, tag="reset-step"):
    pass


class TextStart(_Chunk, frozen=True, tag="text-start"):
    id: str
    provider_metadata: _Metadata = UNSET


class TextDelta(_Chunk, frozen=True, tag="text-delta"):
    id: str
    delta: str
    provider_metadata: _Metadata = UNSET


class UrlSource(Struct, frozen=True, rename="camel", tag_field="sourceType", tag="url"):
    id: str
    url: str
    title: _Str = UNSET
    provider_metadata: _Metadata = UNSET
    type: Literal["source"] = "source"


class DocumentSource(Struct, frozen=True, rename="camel", tag_field="sourceType", tag="document"):
    id: str
    media_type: str
    title: str
    filename: _Str = UNSET
    provider_metadata: _Metadata = UNSET
    type: Literal["source"] = "source"


class Citation(Struct, frozen=True, rename="camel"):
    source: UrlSource | DocumentSource
    start_index: _Index = UNSET
    end_index: _Index = UNSET
    cited_text: _Str = UNSET


class TextEnd(_Chunk, frozen=True, tag="text-end"):
    id: str
    provider_metadata: _Metadata = UNSET
    citations: list[Citation] | UnsetType = UNSET


class ReasoningStart(_Chunk, frozen=True, tag="reasoning-start"):
    id: str
    provider_metadata: _Metadata = UNSET


class ReasoningDelta(_Chunk, frozen=True, tag="reasoning-delta"):
    id: str
    delta: str
    provider_metadata: _Metadata = UNSET


class ReasoningEnd(_Chunk, frozen=True, tag="reasoning-end"):
    id: str
    provider_metadata: _Metadata = UNSET


class ReasoningFile(_Chunk, frozen=True, tag="reasoning-file"):
    url: str
    media_type: str
    provider_metadata: _Metadata = UNSET


class Custom(_Chunk, frozen=True, tag="custom"):
    kind: str
    provider_metadata: _Metadata = UNSET


class SourceUrl(_Chunk, frozen=True, tag="source-url"):
    source_id: str
    url: str
    title: _Str = UNSET
    provider_metadata: _Metadata = UNSET


class SourceDocument(_Chunk, frozen=True, tag="source-document"):
    source_id: str
    media_type: str
    title: str
    filename: _Str = UNSET
    provider_metadata: _Metadata = UNSET


class File(_Chunk, frozen=True, tag="file"):
    url: str
    media_type: str
    provider_metadata: _Metadata = UNSET


class SteeringText(Struct, frozen=True, rename="camel", tag_field="type", tag="text"):
    text: str
    provider_metadata: _Metadata = UNSET


class SteeringFile(Struct, frozen=True, rename="camel", tag_field="type", tag="file"):
    media_type: str
    url: str
    filename: _Str = UNSET
    provider_reference: dict[str, str] | UnsetType = UNSET
    provider_metadata: _Metadata = UNSET


class SteeringMessage(_Chunk, frozen=True, tag="steering-message"):
    id: str
    parts: list[SteeringText | SteeringFile]


class Data(_Chunk, frozen=True, tag=False, tag_field=None):
    """A custom data part. `type` is the app's own name for it, and gets the prefix `data-` if it lacks it."""

    type: str
    data: Any
    id: _Str = UNSET
    transient: _Bool = UNSET

    def __post_init__(self) -> None:
        # A constructor checks no types; the writer and the encoder do.
        if type(self.type) is str and not self.type.startswith("data-"):
            force_setattr(self, "type", f"data-{self.type}")


class ToolInputStart(_Chunk, frozen=True, tag="tool-input-start"):
    tool_call_id: str
    tool_name: str
    provider_executed: _Bool = UNSET
    dynamic: _Bool = UNSET
    title: _Str = UNSET
    provider_metadata: _Metadata = UNSET
    tool_metadata: _Object = UNSET
    input_encoding: Literal["json", "text"] | UnsetType = UNSET


class ToolInputDelta(_Chunk, frozen=True, tag="tool-input-delta"):
    tool_call_id: str
    input_text_delta: str


class ToolInputAvailable(_Chunk, frozen=True, tag="tool-input-available"):
    tool_call_id: str
    tool_name: str
    input: Any
    provider_executed: _Bool = UNSET
    dynamic: _Bool = UNSET
    title: _Str = UNSET
    provider_metadata: _Metadata = UNSET
    tool_metadata: _Object = UNSET


class ToolInputError(_Chunk, frozen=True, tag="tool-input-error"):
    tool_call_id: str
    tool_name: str
    input: Any
    error_text: str
    provider_executed: _Bool = UNSET
    dynamic: _Bool = UNSET
    title: _Str = UNSET
    provider_metadata: _Metadata = UNSET
    tool_metadata: _Object = UNSET


class ToolOutputAvailable(_Chunk, frozen=True, tag="tool-output-available"):
    tool_call_id: str
    output: Any
    provider_executed: _Bool = UNSET
    dynamic: _Bool = UNSET
    preliminary: _Bool = UNSET
    provider_metadata: _Metadata = UNSET
    tool_metadata: _Object = UNSET


class ToolOutputError(_Chunk, frozen=True, tag="tool-output-error"):
    tool_call_id: str
    error_text: str
    provider_executed: _Bool = UNSET
    dynamic: _Bool = UNSET
    provider_metadata: _Metadata = UNSET
    tool_metadata: _Object = UNSET


class ToolOutputDenied(_Chunk, frozen=True, tag="tool-output-denied"):
    tool_call_id: str


class ToolApprovalRequest(_Chunk, frozen=True, tag="tool-approval-request"):
    approval_id: str
    tool_call_id: str
    signature: _Str = UNSET
    reason: _Str = UNSET
    is_automatic: _Bool = UNSET
    approval_descriptor: Any = UNSET
    input_schema_input: Any = UNSET


class ToolApprovalResponse(_Chunk, frozen=True, tag="tool-approval-response"):
    approval_id: str
    approved: bool
    reason: _Str = UNSET
    provider_executed: _Bool = UNSET
    provider_metadata: _Metadata = UNSET


Chunk: TypeAlias = (
    Start
    | Finish
    | Abort
    | Error
    | MessageMetadata
    | StartStep
    | FinishStep
    | ResetStep
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ReasoningFile
    | Custom
    | SourceUrl
    | SourceDocument
    | File
    | SteeringMessage
    | Data
    | ToolInputStart
    | ToolInputDelta
    | ToolInputAvailable
    | ToolInputError
    | ToolOutputAvailable
    | ToolOutputError
    | ToolOutputDenied
    | ToolApprovalRequest
    | ToolApprovalResponse
)

End: TypeAlias = Finish | Abort | Error
TextChunk: TypeAlias = TextStart | TextDelta | TextEnd | ReasoningStart | ReasoningDelta | ReasoningEnd
ToolInput: TypeAlias = ToolInputStart | ToolInputAvailable | ToolInputError
ToolOutput: TypeAlias = ToolOutputAvailable | ToolOutputError

CHUNK_TYPES: Final[dict[str, type[Chunk]]] = {
    str(kind.__struct_config__.tag or "data-*"): kind for kind in cast("tuple[type[Chunk], ...]", get_args(Chunk))
}
"""Every chunk class by its name on the wire; `data-*` stands for all custom data."""

_NAMES: Final = {kind: name for name, kind in CHUNK_TYPES.items()}


def chunk_type(chunk: Chunk) -> str:
    """The chunk's type as it stands on the wire."""
    return chunk.type if isinstance(chunk, Data) else _NAMES[type(chunk)]
