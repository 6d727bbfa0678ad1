"""The signed record of a finished round: the leader vouches for members, samples and state hash. Knows no rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ciuic_p2p.core.events import RecordTranscript
from ciuic_p2p.core.messages import Transcript, encode
from ciuic_p2p.core.signing import verify
from ciuic_p2p.terms import PeerId

_DOMAIN = b"ciuic-p2p transcript 1\0"


def sign_transcript(run: str, action: RecordTranscript, sign: Callable[[bytes], bytes]) -> Transcript:
    unsigned = Transcript(
        run=run,
        epoch=action.epoch,
        contributors=action.contributors,
        lost=action.lost,
        state_hash=action.state_hash,
        signature=b"",
    )
    return replace(unsigned, signature=sign(_DOMAIN + encode(unsigned)))


def is_signed_by(signer: PeerId, transcript: Transcript) -> bool:
    return verify(signer, _DOMAIN + encode(replace(transcript, signature=b"")), transcript.signature)
