"""Checks sampling fields that a program gives as Python values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from ...runtime.errors import RequestError
from ..core.fields import SamplingFields
from ..core.type_errors import type_error
from ..core.validation import check_fields


def check_sampling(call: str, values: Mapping[str, object]) -> None:
    """Raises TypeError or ValueError for a sampling field that no server takes. Other names are left alone.

    call: what the error names first, such as `gen('answer')`
    """
    fields = {name: value for name, value in values.items() if name in SamplingFields.__struct_fields__}
    data = msgspec.json.encode(fields)
    try:
        check_fields(msgspec.json.decode(data, type=SamplingFields))
    except msgspec.ValidationError as error:
        raw = msgspec.json.decode(data, type=dict[str, Raw])
        raise TypeError(f"{call}: {type_error(error, raw)}") from None
    except RequestError as error:
        raise ValueError(f"{call}: {error}") from None
