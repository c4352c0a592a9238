"""Whose prices hold, by the names that others have for providers. Owns: the table. Refuses to know: prices."""

from __future__ import annotations

_NAMES = {
    "amazon-bedrock": "aws",
    "amazon_bedrock": "aws",
    "amazon_bedrock_converse": "aws",
    "aws.bedrock": "aws",
    "aws_bedrock": "aws",
    "azure-openai": "azure",
    "bedrock": "aws",
    "az.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "azure.ai.openai": "azure",
    "azure_ai": "azure",
    "azure_openai": "azure",
    "cohere_chat": "cohere",
    "fireworks_ai": "fireworks",
    "gcp": "google",
    "gemini": "google",
    "github_copilot": "github-copilot",
    "google_genai": "google",
    "google_vertexai": "google",
    "mistral_ai": "mistral",
    "mistralai": "mistral",
    "moonshot": "moonshotai",
    "moonshot_ai": "moonshotai",
    "together_ai": "together",
    "togetherai": "together",
    "vertex": "google",
    "vertex_ai": "google",
    "vertexai": "google",
    "voyage": "voyageai",
    "x_ai": "x-ai",
    "xai": "x-ai",
}
_BEGINNINGS = {"bedrock": "aws", "vertex_ai": "google"}


def seller_called(name: str | None) -> str | None:
    """The catalog's name for the provider that somebody calls `name`; another one stays what it is."""
    if name is None:
        return None
    asked = name.strip().lower()
    known = _NAMES.get(asked) or next((to for begin, to in _BEGINNINGS.items() if asked.startswith(begin)), None)
    if known is None and "." in asked:
        return seller_called(asked.partition(".")[0])
    return known or asked or None


def without_seller(model: str, name: str | None) -> str:
    """The model's name without the provider's before it, as routers write it."""
    seller, _, rest = model.partition("/")
    return rest if rest and name is not None and seller.lower() == name.lower() else model
