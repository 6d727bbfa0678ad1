"""What this machine asks about objects, brought to the object store: addresses are read here. Knows no peers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ciuic_p2p.core.objects import SCHEME, ObjectName, check_bucket, parse_address
from ciuic_p2p.daemon.objects import Objects
from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.protocol import GetObject, ListObjects, ObjectRequest, PutObject, ReadObject, RemoveObject, StatObject
from ciuic_p2p.tensors.erasure import Code

MOST_LISTED = 5000
"""In one answer, which is a few MB with the longest names."""


async def answer_request(objects: Objects, request: ObjectRequest, moved: Callable[[int, int], None]) -> Any:
    """Plain data. Raises what the object store does, and LocalError for an address that is none."""
    match request:
        case PutObject():
            return await objects.put(Path(request.path), _name(request.address), moved, _code(request))
        case GetObject():
            return await objects.get(_name(request.address), Path(request.path), moved)
        case ReadObject():
            return await objects.read(_name(request.address), request.offset, request.length, request.etag)
        case StatObject():
            return objects.stat(_name(request.address))
        case RemoveObject():
            await objects.remove(_name(request.address))
            return None
        case ListObjects():
            return _list(objects, request)
    raise LocalError(f"this daemon does not know {request.type}", "use the same version of ciuic-p2p on both sides")


def _list(objects: Objects, request: ListObjects) -> dict[str, Any]:
    """One page; `more` says whether there is another one, behind the last address of this one."""
    bucket, prefix = _split(request.prefix)
    after = _name(request.after) if request.after else None
    rows = objects.list_objects(bucket, prefix, after, MOST_LISTED + 1)
    return {"objects": rows[:MOST_LISTED], "more": len(rows) > MOST_LISTED}


def _split(prefix: str) -> tuple[str, str]:
    """Bucket and beginning of the key; "" for all buckets. Raises LocalError."""
    if prefix in ("", SCHEME):
        return "", ""
    if not prefix.startswith(SCHEME):
        raise LocalError(f"{prefix!r} does not begin with {SCHEME}", f"write it as {SCHEME}BUCKET/PREFIX")
    bucket, _, key = prefix.removeprefix(SCHEME).partition("/")
    try:
        check_bucket(bucket)
    except ValueError as error:
        raise LocalError(str(error), f"write it as {SCHEME}BUCKET/PREFIX") from None
    return bucket, key


def _code(request: PutObject) -> Code | None:
    if not (request.data_shards or request.parity_shards):
        return None
    try:
        return Code(k=request.data_shards, m=request.parity_shards)
    except ValueError as error:
        raise LocalError(f"no erasure code of {error}", "such as 4+2: any 4 of 6 shards give all") from None


def _name(address: str) -> ObjectName:
    try:
        return parse_address(address)
    except ValueError as error:
        raise LocalError(str(error), f"write it as {SCHEME}BUCKET/KEY") from None
