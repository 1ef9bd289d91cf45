"""The cache and cookies of a browser: only what the server allows is cached."""

from __future__ import annotations

import http.client
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

MAX_AGE = re.compile(r"max-age=(\d+)")
SHOWN = 8  # slides whose pictures are requested


class Browser:
    """Cookies and cached responses by address, kept in a file between two starts of the viewer."""

    def __init__(self, memory: Path | None = None) -> None:
        self.memory = memory
        known = json.loads(memory.read_text()) if memory and memory.is_file() else {}
        self.cached: dict[str, Any] = known.get("cached", {})
        self.cookies: dict[str, str] = known.get("cookies", {})

    def close(self) -> None:
        """Write cookies and cached responses to the file."""
        if self.memory:
            self.memory.write_text(json.dumps({"cached": self.cached, "cookies": self.cookies}))

    def get(self, address: str) -> tuple[str, int, bytes]:
        """The address after redirects, the status, and the content."""
        kept = self.cached.get(address)
        if kept and kept["until"] > time.time():
            return address, 200, bytes.fromhex(kept["content"])
        parts = urlsplit(address)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection = http.client.HTTPConnection(parts.netloc, timeout=20)
        try:
            known = {"if-none-match": kept["etag"]} if kept and kept["etag"] else {}
            connection.request("GET", target or "/", headers=self._headers(parts.path) | known)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        for line in answer.headers.get_all("set-cookie") or ():
            self.cookies[line] = parts.netloc
        if answer.status == 304 and kept:
            return address, 200, bytes.fromhex(kept["content"])
        if answer.status in (301, 302, 303, 307, 308):
            return self.get(urljoin(address, answer.headers["location"]))
        self._keep(address, answer, content)
        return address, answer.status, content

    def _headers(self, path: str) -> dict[str, str]:
        pairs = {}
        # Cookies are sent to all ports of a host, and to the paths that they are for.
        for line in self.cookies:
            pair, *options = (part.strip() for part in line.split(";"))
            place = next(
                (option[5:] for option in options if option.lower().startswith("path=")), "/"
            )
            if path.startswith(place):
                name, _, value = pair.partition("=")
                pairs[name] = value
        return (
            {"cookie": "; ".join(f"{name}={value}" for name, value in pairs.items())}
            if pairs
            else {}
        )

    def _keep(self, address: str, answer: http.client.HTTPResponse, content: bytes) -> None:
        policy = (answer.headers.get("cache-control") or "").lower()
        age = MAX_AGE.search(policy)
        lasts = int(age[1]) if age and "no-cache" not in policy else 0
        tag = answer.headers.get("etag")
        if answer.status == 200 and (lasts or tag) and "no-store" not in policy:
            self.cached[address] = {
                "until": time.time() + lasts,
                "etag": tag,
                "content": content.hex(),
            }


def look(address: str, browser: Browser) -> dict[str, bytes]:
    """What a viewer shows of its first slides: names, pixels of the slide and of a tile, scores."""
    start, status, content = browser.get(address)
    if status != 200:
        raise RuntimeError(f"the page has status {status}: {content[:200]!r}")
    _, status, content = browser.get(urljoin(start, "api/slides"))
    page = json.loads(content)
    # The atlas is the result of another command, which a fresh run of the viewer does not have.
    models = [
        {key: value for key, value in model.items() if key != "atlas"} for model in page["models"]
    ]
    shown = {"models": json.dumps(models).encode()}
    for place, line in enumerate(page["slides"][:SHOWN]):
        name = line["id"]
        entry = {key: line[key] for key in ("id", "label", "models")}
        shown[f"{name}: line of the list"] = json.dumps(entry, sort_keys=True).encode()
        _, status, content = browser.get(urljoin(start, f"api/slide/{place}?model=0"))
        if status != 200:
            shown[f"{name}: about"] = content
            continue
        about = json.loads(content)
        tiles = {key: about[key] for key in ("size", "mpp", "xy", "side")}
        shown[f"{name}: tiles"] = json.dumps(tiles, sort_keys=True).encode()
        for what, path in pictures(page, place, about).items():
            _, status, content = browser.get(urljoin(start, path))
            shown[f"{name}: {what}"] = b"%d " % status + content
    return shown


def pictures(page: dict[str, Any], place: int, about: dict[str, Any]) -> dict[str, str]:
    """The addresses of a slide's pictures and numbers, as static/api.js makes them."""
    found = {f"pyramid, level {level}": f"dz/{place}/{level}/0_0.jpg" for level in (8,)}
    if about["kinds"]:
        found["tile"] = f"api/slide/{place}/tile/1?model=0"
        found["scores"] = f"api/slide/{place}/scores?model=0&kind=attention"
    return found
