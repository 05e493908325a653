from typing import Any

from usechat.integrations.strands.messages import to_strands

PDF = "data:application/pdf;base64,JVBERg=="
PNG = "data:image/png;base64,iVBORw=="


def asked(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def file(media_type: str, url: str, name: str = "") -> dict[str, Any]:
    return {"type": "file", "mediaType": media_type, "filename": name, "data": {"type": "url", "url": url}}


def test_files_are_bytes_and_a_file_that_strands_cannot_take_is_named() -> None:
    parts = [text("Look"), file("image/png", PNG), file("application/pdf", PDF, "A_b.pdf")]
    remote = file("image/png", "https://example.org/dot.png")
    assert to_strands([asked(*parts, remote)]) == [
        {
            "role": "user",
            "content": [
                {"text": "Look"},
                {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}},
                {"document": {"format": "pdf", "name": "A-b-pdf", "source": {"bytes": b"%PDF"}}},
                {"text": "[The file (image/png) at https://example.org/dot.png cannot be shown here.]"},
            ],
        }
    ]


def test_reasoning_goes_back_only_with_what_its_provider_signed() -> None:
    signed = {"strands": {"signature": "SIGNATURE"}}
    hidden = {"strands": {"redactedContent": "QUJD"}}
    said = [
        {"type": "reasoning", "text": "Hm.", "providerOptions": signed},
        {"type": "reasoning", "text": "", "providerOptions": hidden},
        {"type": "reasoning", "text": "Not signed."},
        text("Hello."),
    ]
    assert to_strands([asked(text("Hi")), {"role": "assistant", "content": said}])[1:] == [
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "SIGNATURE"}}},
                {"reasoningContent": {"redactedContent": b"ABC"}},
                {"text": "Hello."},
            ],
        }
    ]


def test_the_roles_alternate_also_after_an_answer_that_was_stopped() -> None:
    call: dict[str, Any] = {"type": "tool-call", "toolCallId": "c1", "toolName": "wait", "input": {}}
    interrupted = {"role": "assistant", "content": [{"text": "(This answer was interrupted.)"}]}
    stopped = "This call has no result: it was not run, or was interrupted."
    messages = [asked(text("One")), asked(text("Two")), {"role": "assistant", "content": [call]}, asked(text("Three"))]
    assert to_strands(messages) == [
        {"role": "user", "content": [{"text": "One"}]},
        interrupted,
        {"role": "user", "content": [{"text": "Two"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "wait", "input": {}}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c1", "status": "error", "content": [{"text": stopped}]}}],
        },
        interrupted,
        {"role": "user", "content": [{"text": "Three"}]},
    ]
