"""Texts of messages that others wrote."""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from hedgerow.services.process.texts import one_line


def spell_out(message: Message, but: Collection[str] = ()) -> None:
    """Spell out control characters in all texts of a message, at any depth, in place.

    Parameters
    ----------
    but : collection of str
        Fields that are left as they are.
    """
    for field, value in message.ListFields():
        if field.name in but:
            continue
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                inner = field.message_type.fields_by_name["value"]
                values = value.values() if inner.message_type is not None else ()
            else:
                values = value if field.is_repeated else (value,)
            for one in values:
                spell_out(one, but)
        elif field.type != FieldDescriptor.TYPE_STRING:
            continue
        elif field.is_repeated:
            if not all(text.isprintable() for text in value):
                value[:] = [one_line(text) for text in value]
        elif not value.isprintable():
            setattr(message, field.name, one_line(value))
