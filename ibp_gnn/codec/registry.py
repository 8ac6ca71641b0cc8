"""All codecs: a new one is a file beside this one, with its form, and a line here."""

from __future__ import annotations

from .dict import DictForm
from .forms import Form
from .ibp import IbpForm

# By kind. Of two that are as small, `Codec.fit` takes the first.
FORMS: dict[str, type[Form]] = {
    form.kind: form
    for form in (
        DictForm,
        IbpForm,
    )
}
