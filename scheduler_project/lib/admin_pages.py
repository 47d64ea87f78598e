"""What all pages of the operators' console share; its rule: nothing counts a big table.

Rows are looked at, not edited: what acts is a page that asks first and then calls the service that
the API calls.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypeVar, cast

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold import paginator
from unfold.admin import ModelAdmin
from unfold.decorators import action, display

Method = TypeVar("Method", bound=Callable[..., Any])

# A page is found by skipping the rows before it; whoever looks deeper than this narrows the list.
_LAST_PAGE: Final = 100
_CONFIRMED: Final = "confirmed"


class InfinitePaginator(paginator.InfinitePaginator):  # type: ignore[misc]
    """Pages with a previous and a next one, and no number of rows; the theme knows the name."""

    @cached_property
    def count(self) -> int:
        """As many rows as may be paged through; a page beyond them doesn't exist."""
        return int(self.per_page) * _LAST_PAGE


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """Lists and pages without add, edit and delete; a page shows what `fieldsets` names."""

    paginator = InfinitePaginator
    show_full_result_count = False
    list_per_page = 50
    list_disable_select_all = True
    list_filter_submit = True
    # A click on a heading would sort a big table by a column without an index.
    sortable_by = ()

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Model]
    ) -> HttpResponse | None:
        """What Django answers; a choice of what can be no id is said, where Django would crash."""
        try:
            response: HttpResponse | None = super().response_action(request, queryset)
        except (ValidationError, ValueError):
            messages.error(request, "Some of the chosen rows don't exist.")
            return HttpResponseRedirect(request.get_full_path())
        return response

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody may: rows come from services and duties."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody may: rows change by actions."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody may: retention deletes."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Whoever may look at, or act on, this kind of row."""
        names = (f"{self.opts.app_label}.{verb}_{self.opts.model_name}" for verb in _SEEING)
        return any(request.user.has_perm(name) for name in names)

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Who may use the actions: Django's `change` permission."""
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        """Every field that the page shows."""
        return [
            name
            for _, options in self.get_fieldsets(request, obj)
            for field in options["fields"]
            for name in (field if isinstance(field, tuple) else (field,))
        ]


_SEEING: Final = ("view", "change")


def instant_text(instant: datetime | None) -> str:
    """An instant in UTC to the millisecond, as logs and the API write it; "" for None."""
    if instant is None:
        return ""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def seconds_text(duration: timedelta | float | None) -> str:
    """A duration in seconds to the millisecond; "" for None."""
    if duration is None:
        return ""
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return f"{value:.3f} s"


def clock_text(instant: datetime | None, day: date) -> str:
    """The time of an instant (UTC), with its date only when that isn't `day`."""
    text = instant_text(instant).removesuffix(" UTC")
    return text.removeprefix(f"{day} ")


def instant_column(name: str, title: str | None = None) -> Callable[[Any, Model], str]:
    """A column or field that shows the instant in the attribute `name`, and UTC in its title."""

    def show(self: Any, row: Model) -> str:
        text = instant_text(getattr(row, name)).removesuffix(" UTC")
        return unbroken(text) if text else ""

    words = title or name.replace("_", " ")
    show.short_description = f"{words} (UTC)"  # type: ignore[attr-defined]
    return show


def unbroken(text: object) -> SafeString:
    """Text that stays in one line."""
    return format_html('<span class="whitespace-nowrap">{}</span>', text)


def label_column(title: str, colours: Mapping[str, str]) -> Callable[[Method], Method]:
    """A column whose words are shown as labels in colours (info, success, warning, danger)."""
    return cast("Callable[[Method], Method]", display(description=title, label=dict(colours)))


def page_action(title: str, path: str, permission: str) -> Callable[[Method], Method]:
    """A button on a row's page that leads to `path`, for whom `has_<permission>_permission`."""
    made = action(description=title, url_path=path, permissions=[permission])
    return cast("Callable[[Method], Method]", made)


def code(value: object) -> SafeString:
    """An id, or a piece of configuration as JSON, escaped, in a typewriter's letters."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
    return format_html('<span class="font-mono text-xs">{}</span>', text)


def link(url: str, text: object) -> SafeString:
    """A link to another page of the console."""
    return format_html(
        '<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, text
    )


def ask_first(
    request: HttpRequest,
    admin: ModelAdmin,
    *,
    title: str,
    sentence: str,
    back: str,
    rows: Sequence[Model],
    action: str = "",
) -> HttpResponse | None:
    """The page that asks whether to go on, or None once the answer is yes.

    `action` is the name of an action of the list: the answer comes to the list, with the rows.
    """
    if request.method == "POST" and request.POST.get(_CONFIRMED):
        return None
    hidden = [(_CONFIRMED, "yes")]
    if action:
        hidden += [("action", action), *((ACTION_CHECKBOX_NAME, str(row.pk)) for row in rows)]
    return _page(
        request, admin, title=title, sentence=sentence, back=back, rows=rows, hidden=hidden
    )


def ask_with_form(
    request: HttpRequest,
    admin: ModelAdmin,
    form: BaseForm,
    act: Callable[[dict[str, Any]], HttpResponse],
    *,
    title: str,
    sentence: str,
    back: str,
) -> HttpResponse:
    """A page with a form; `act` gets its values. What the service refuses is said at its field."""
    if request.method == "POST" and form.is_valid():
        try:
            return act(form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, error)
    return _page(request, admin, title=title, sentence=sentence, back=back, form=form)


def tell(
    request: HttpRequest, done: Sequence[str], refused: Sequence[str], back: str
) -> HttpResponseRedirect:
    """Go back, with what an action did and what was refused."""
    if done:
        messages.success(request, "; ".join(done) + ".")
    if refused:
        messages.warning(request, "; ".join(refused) + ".")
    return HttpResponseRedirect(back)


def show_page(
    request: HttpRequest, admin: ModelAdmin, template: str, **context: Any
) -> TemplateResponse:
    """A page of the console around `template`."""
    request.current_app = admin.admin_site.name
    shared = {**admin.admin_site.each_context(request), "opts": admin.opts, "media": admin.media}
    return TemplateResponse(request, template, {**shared, **context})


def _page(request: HttpRequest, admin: ModelAdmin, **context: Any) -> TemplateResponse:
    form = context.get("form")
    media = admin.media + form.media if form else admin.media
    return show_page(request, admin, "admin/action_page.html", media=media, **context)
