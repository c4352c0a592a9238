"""What one turn of a conversation says: texts and images, as OpenAI's endpoints write them.

Owns: how texts are joined, and images in URLs. Refuses to know: which endpoint names its parts how, and what is on an
image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taximeter.errors import RequestError
from taximeter.records import Image

_DATA_URL = re.compile(r"data:(image/[A-Za-z0-9.+-]{1,64});base64,")
_MOST_URL_CHARACTERS = 8192


def content_of(parts: Sequence[str | Image]) -> str | tuple[str | Image, ...]:
    """One text where there is nothing else: other engines put a line break between text parts too, and a model sees
    them as paragraphs."""
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def image_of(url: str, at: str) -> Image:
    """The image that `url` names or holds. Raises RequestError for a URL of another kind."""
    if found := _DATA_URL.match(url):
        if data := url[found.end() :]:
            return Image(data=data, media_type=found[1])
        raise RequestError(f"`{at}` holds no image", param=at)
    if not url.startswith(("https://", "http://")) or len(url) > _MOST_URL_CHARACTERS or not url.isprintable():
        raise RequestError(f"`{at}` must be a web address, or data:image/…;base64,…", param=at)
    return Image(url=url)


def url_of(image: Image) -> str:
    """The other way round: one URL for either kind of image."""
    return image.url if image.url is not None else f"data:{image.media_type};base64,{image.data}"
