"""What is assumed of the path between two regions before anything was measured: a round-trip time, by the distance on a globe.

Knows where regions of well-known names lie: us, eu, as and such, and those of cloud providers by how their names begin.
"""

from __future__ import annotations

import functools
import math

from ciuic_p2p.terms import UNKNOWN_REGION

EARTH_RADIUS_KM = 6371.0
FIBRE_KM_PER_MS = 200.0
"""Light in glass: two thirds of its speed in vacuum."""
DETOUR = 1.5
"""Cables do not follow great circles."""
NEAREST_RTT_MS = 5.0
"""Within a region, and on top of any distance: access lines and routers."""
UNKNOWN_RTT_MS = 100.0
"""Between regions of which one is not known here."""

COORDINATES = {
    "us": (39.0, -77.5),
    "us-east": (39.0, -77.5),
    "us-east-2": (40.0, -83.0),
    "us-central": (41.3, -95.9),
    "us-south": (32.8, -96.8),
    "us-west": (45.6, -121.2),
    "us-west-1": (37.4, -121.9),
    "eastus": (37.4, -79.8),
    "centralus": (41.6, -93.6),
    "southcentralus": (29.4, -98.5),
    "westus": (37.8, -122.4),
    "na": (39.0, -77.5),
    "northamerica": (45.5, -73.6),
    "ca": (45.5, -73.6),
    "ca-west": (51.0, -114.1),
    "canada": (45.5, -73.6),
    "mx": (20.6, -100.4),
    "eu": (50.1, 8.7),
    "eu-west": (53.3, -6.3),
    "eu-west-2": (51.5, -0.1),
    "eu-west-3": (48.9, 2.4),
    "eu-north": (59.3, 18.1),
    "eu-south": (45.5, 9.2),
    "europe": (50.1, 8.7),
    "europe-west1": (50.4, 3.8),
    "europe-west2": (51.5, -0.1),
    "europe-north": (60.6, 27.2),
    "northeurope": (53.3, -6.3),
    "westeurope": (52.4, 4.9),
    "uk": (51.5, -0.1),
    "de": (50.1, 8.7),
    "fr": (48.9, 2.4),
    "as": (35.7, 139.7),
    "asia": (35.7, 139.7),
    "asia-east": (24.1, 120.7),
    "asia-south": (19.1, 72.9),
    "asia-southeast": (1.3, 103.8),
    "ap": (35.7, 139.7),
    "ap-east": (22.3, 114.2),
    "ap-northeast": (35.7, 139.7),
    "ap-northeast-2": (37.6, 127.0),
    "ap-south": (19.1, 72.9),
    "ap-southeast": (1.3, 103.8),
    "ap-southeast-2": (-33.9, 151.2),
    "eastasia": (22.3, 114.2),
    "southeastasia": (1.3, 103.8),
    "japan": (35.7, 139.7),
    "jp": (35.7, 139.7),
    "kr": (37.6, 127.0),
    "korea": (37.6, 127.0),
    "cn": (31.2, 121.5),
    "china": (31.2, 121.5),
    "in": (19.1, 72.9),
    "sg": (1.3, 103.8),
    "au": (-33.9, 151.2),
    "australia": (-33.9, 151.2),
    "oc": (-33.9, 151.2),
    "sa": (-23.5, -46.6),
    "southamerica": (-23.5, -46.6),
    "brazil": (-23.5, -46.6),
    "br": (-23.5, -46.6),
    "af": (-26.2, 28.0),
    "africa": (-26.2, 28.0),
    "me": (25.2, 55.3),
    "me-central": (25.2, 55.3),
    "il": (32.1, 34.8),
}
"""Latitude and longitude, degrees: a data centre there, or the middle of where people are."""


def place_region(region: str) -> tuple[float, float] | None:
    """Latitude and longitude in degrees of the longest known name that this label is or begins with; None for any other."""
    label = region.strip().lower()
    for length in range(len(label), 0, -1):
        rest = label[length:]
        if label[:length] in COORDINATES and not (rest and rest[0].isalpha() and label[length - 1].isalpha()):
            return COORDINATES[label[:length]]
    return None


@functools.lru_cache(maxsize=4096)
def assume_rtt_ms(one: str, other: str) -> float:
    """The round trip between two regions, while none was measured."""
    if one == other:
        return NEAREST_RTT_MS if one != UNKNOWN_REGION else UNKNOWN_RTT_MS
    here, there = place_region(one), place_region(other)
    if here is None or there is None:
        return UNKNOWN_RTT_MS
    return NEAREST_RTT_MS + DETOUR * 2 * _distance_km(here, there) / FIBRE_KM_PER_MS


def _distance_km(here: tuple[float, float], there: tuple[float, float]) -> float:
    """Along a great circle (haversine formula)."""
    latitude, other_latitude = math.radians(here[0]), math.radians(there[0])
    turn = math.radians(there[1] - here[1])
    half = (
        math.sin((other_latitude - latitude) / 2) ** 2 + math.cos(latitude) * math.cos(other_latitude) * math.sin(turn / 2) ** 2
    )
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(half))
