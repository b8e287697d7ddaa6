"""Parses a multipart form piece by piece. The content of its file goes to disk, never whole into memory."""

from __future__ import annotations

import os
from pathlib import Path

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from ....runtime.errors import RequestError

MAX_FILE_BYTES = 200 * 1024 * 1024
MAX_FIELD_BYTES = 1024
MAX_PARTS = 16
MAX_FILENAME = 256  # characters of an uploaded file's name


class UploadForm:
    """The fields of a form, and its file at `path`. Its methods block, so they belong on another thread."""

    def __init__(self, content_type: str, path: Path) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise RequestError(
                f"The request's content type is {content_type[:100]!r}: send the file as multipart/form-data "
                "with the fields purpose and file.",
                status=415,
                code="unsupported_media_type",
            )
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _malformed(str(error)) from None
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        """Bytes of the file so far."""
        self._path = path
        self._descriptor: int | None = None
        self._is_file = False
        self._name = ""
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header = (bytearray(), bytearray())
        self._parts = 0
        self._is_complete = False

    def feed(self, piece: bytes) -> None:
        """Parses a piece. Raises `RequestError` for a malformed form, OSError if writing fails."""
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _malformed(str(error)) from None

    def finish(self) -> None:
        """Flushes the file to the disk. Raises `RequestError` for an incomplete form."""
        if not self._is_complete:
            raise _malformed("it ends within a part")
        if self._descriptor is None:
            raise RequestError("The required field file is missing.", param="file", code="missing_field")
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # Callbacks of the parser.

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _malformed(f"it has more than {MAX_PARTS} parts")
        self._headers, self._header = {}, (bytearray(), bytearray())
        self._name, self._is_file = "", False
        self._value.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1].extend(data[start:end])

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name != "file":
            return
        if self._descriptor is not None:
            raise RequestError("The form has the field file twice.", param="file", code="invalid_value")
        self._is_file = True
        self.filename = (
            options.get(b"filename", b"").decode(errors="replace")[-MAX_FILENAME:] or "upload.jsonl"
        )
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file and self._descriptor is not None:
            self.size += end - start
            if self.size > MAX_FILE_BYTES:
                raise file_too_large()
            _write_all(self._descriptor, memoryview(data)[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise RequestError(
                f"The form's field {self._name[:100]!r} has more than {MAX_FIELD_BYTES} bytes.",
                param=self._name[:100],
                code="invalid_value",
            )

    def _end_part(self) -> None:
        if not self._is_file and self._name:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self._is_complete = True


def file_too_large() -> RequestError:
    return RequestError(
        f"The file has more than {MAX_FILE_BYTES} bytes: split it into several files.",
        status=413,
        param="file",
        code="file_too_large",
    )


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _malformed(why: str) -> RequestError:
    return RequestError(f"The request's body is not a valid multipart form: {why}.", code="invalid_form")
