"""Tenants and their keys in the console; a key's text is in one answer, its hash in none."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextInputWidget,
)

from scheduler_project.lib.admin_pages import (
    ReadOnlyAdmin,
    ask_first,
    ask_with_form,
    code,
    instant_column,
    label_column,
    link,
    page_action,
    show_page,
    tell,
)
from tenants.domain.scope import SCOPES, WRITE
from tenants.models import ApiKey, Tenant
from tenants.services import apikey_issue, apikey_revoke, tenant_create, tenant_set_contact

_LIMITS = (
    ("weight", "max_concurrent_runs"),
    ("max_jobs", "max_runs_per_hour"),
    ("max_timeout_s", "min_interval_s"),
    ("max_cpu", "max_memory_mb"),
)


class ContactForm(forms.Form):
    """To whom notices are written."""

    contact_email = forms.EmailField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Told that a webhook was switched off or a job paused itself; empty: nobody.",
    )


class NewKeyForm(forms.Form):
    """What a new key is for and what it may do."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.all(),
        # Found by typing: there may be thousands.
        widget=AutocompleteSelect(
            ApiKey._meta.get_field("tenant"),
            admin.site,
        ),
    )
    name = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Who or what will use the key; shown in lists.",
    )
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES],
        initial=[WRITE],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="write includes read, admin includes both.",
    )
    expires_in_days = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=3_650,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Leave it empty for a key that doesn't expire.",
    )


@admin.register(Tenant)
class TenantAdmin(ReadOnlyAdmin):
    """Tenants with their limits; a new one is made as `tenant_create` makes it."""

    list_display = ("name", "weight", "max_concurrent_runs", "max_jobs", "state", "created")
    search_fields = ("name",)
    fieldsets = (
        (None, {"fields": ("name", "id_text", "state", "created", "contact_email")}),
        ("Its", {"fields": ("keys", "jobs", "runs", "webhooks")}),
        ("Limits", {"fields": _LIMITS}),
        ("Containers", {"fields": ("isolation_floor", "image_allow_list", "allow_root")}),
    )
    actions_detail = ("contact",)
    created = instant_column("created_at", "created")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Django's `add` permission."""
        return bool(request.user.has_perm("tenants.add_tenant"))

    @page_action("Change contact", "contact", "act")
    def contact(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the address of the tenant of this page, and set it."""
        tenant = self.get_object(request, object_id)
        if tenant is None:
            raise Http404

        def act(values: dict[str, Any]) -> HttpResponse:
            tenant_set_contact(tenant, values["contact_email"])
            self.log_change(request, tenant, "Contact changed")
            return tell(request, [f"{tenant.name} has a new contact"], [], _page_of(tenant))

        return ask_with_form(
            request,
            self,
            ContactForm(request.POST or None, initial={"contact_email": tenant.contact_email}),
            act,
            title="Change contact",
            sentence="Letters that were not sent yet go to the new address.",
            back=_page_of(tenant),
        )

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for a name and the limits, and create the tenant."""
        _require(self.has_add_permission(request))
        fields = [
            "name",
            *(name for pair in _LIMITS for name in pair),
            "isolation_floor",
            "image_allow_list",
            "allow_root",
            "contact_email",
        ]
        form_class = forms.modelform_factory(
            Tenant,
            fields=fields,
            help_texts={"image_allow_list": "Beginnings of image names, with commas; empty: all."},
            formfield_callback=lambda field, **kw: self.formfield_for_dbfield(field, request, **kw),
        )

        def act(values: dict[str, Any]) -> HttpResponse:
            tenant = tenant_create(**values)
            self.log_addition(request, tenant, "Created")
            return tell(request, [f"Tenant {tenant.name} created"], [], _page_of(tenant))

        return ask_with_form(
            request,
            self,
            form_class(request.POST or None),
            act,
            title="Create tenant",
            sentence="A tenant can do nothing before it has a key: issue one next.",
            back=reverse("admin:tenants_tenant_changelist"),
        )

    @admin.display(description="tenant id")
    def id_text(self, tenant: Tenant) -> SafeString:
        return code(tenant.tenant_id)

    @label_column("state", {"active": "success", "suspended": "danger"})
    def state(self, tenant: Tenant) -> str:
        return "suspended" if tenant.suspended_at else "active"

    @admin.display(description="keys")
    def keys(self, tenant: Tenant) -> SafeString:
        return _list_of(tenant, "tenants_apikey", "Its keys")

    @admin.display(description="jobs")
    def jobs(self, tenant: Tenant) -> SafeString:
        return _list_of(tenant, "jobs_job", "Its jobs")

    @admin.display(description="webhooks")
    def webhooks(self, tenant: Tenant) -> SafeString:
        return _list_of(tenant, "runs_webhookendpoint", "Its webhooks")

    @admin.display(description="runs")
    def runs(self, tenant: Tenant) -> SafeString:
        return _list_of(tenant, "runs_run", "Its runs")


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """Keys: issued with the text shown once, and revoked."""

    list_display = ("name", "tenant", "shown_prefix", "scope_list", "state", "created", "last_used")
    list_filter = (("tenant", AutocompleteSelectFilter),)
    list_select_related = ("tenant",)
    search_fields = ("name", "prefix__startswith")
    fieldsets = (
        (None, {"fields": ("name", "tenant", "shown_prefix", "scope_list", "state")}),
        ("Times", {"fields": ("created", "expires", "revoked", "last_used")}),
    )
    actions = ("revoke_selected",)
    actions_detail = ("revoke",)
    created = instant_column("created_at", "created")
    expires = instant_column("expires_at", "expires")
    revoked = instant_column("revoked_at", "revoked")
    last_used = instant_column("last_used_at", "last used")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiKey]:
        """Without the hash, so that no page, form or export can show it."""
        is_expired = ExpressionWrapper(
            Q(expires_at__isnull=False) & Q(expires_at__lte=Now()), output_field=BooleanField()
        )
        keys: QuerySet[ApiKey] = super().get_queryset(request)
        return keys.defer("key_hash").annotate(is_expired=is_expired)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Django's `add` permission."""
        return bool(request.user.has_perm("tenants.add_apikey"))

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask what the key is for, issue it, and show its text: here and never again."""
        _require(self.has_add_permission(request))
        back = reverse("admin:tenants_apikey_changelist")

        def act(values: dict[str, Any]) -> HttpResponse:
            days = values.pop("expires_in_days")
            issued = apikey_issue(**values, expires_in=timedelta(days=days) if days else None)
            self.log_addition(request, issued.api_key, "Issued")
            # Shown in this answer, not after a redirect: a session or a message would store it.
            answer = show_page(
                request,
                self,
                "admin/key_issued.html",
                title="Key issued",
                api_key=issued.api_key,
                key=issued.text,
                back=back,
            )
            answer["Cache-Control"] = "no-store"
            return answer

        return ask_with_form(
            request,
            self,
            NewKeyForm(request.POST or None, initial=request.GET.dict()),
            act,
            title="Issue key",
            sentence="The key is shown once, on the next page. Only its hash is kept.",
            back=back,
        )

    @admin.action(description="Revoke", permissions=["act"])
    def revoke_selected(
        self, request: HttpRequest, queryset: QuerySet[ApiKey]
    ) -> HttpResponse | None:
        """Revoke the chosen keys."""
        keys = list(queryset)
        back = request.get_full_path()
        return self._ask(request, keys, back, "revoke_selected") or self._revoke(
            request, keys, back
        )

    @page_action("Revoke", "revoke", "act")
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Revoke the key of this page."""
        key = self.get_object(request, object_id)
        if key is None:
            raise Http404
        back = reverse("admin:tenants_apikey_change", args=[object_id])
        return self._ask(request, [key], back) or self._revoke(request, [key], back)

    def _ask(
        self, request: HttpRequest, keys: Sequence[ApiKey], back: str, name: str = ""
    ) -> HttpResponse | None:
        return ask_first(
            request,
            self,
            title="Revoke",
            sentence="From its next request on, whoever uses this is refused. It can't be undone.",
            back=back,
            rows=keys,
            action=name,
        )

    def _revoke(
        self, request: HttpRequest, keys: Sequence[ApiKey], back: str
    ) -> HttpResponseRedirect:
        for key in keys:
            apikey_revoke(key.prefix)
            self.log_change(request, key, "Revoked")
        return tell(request, [f"{key} revoked" for key in keys], [], back)

    @admin.display(description="prefix")
    def shown_prefix(self, key: ApiKey) -> SafeString:
        return code(f"sk_{key.prefix}_…")

    @admin.display(description="scopes")
    def scope_list(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    @label_column("state", {"active": "success", "revoked": "danger", "expired": "warning"})
    def state(self, key: ApiKey) -> str:
        if key.revoked_at:
            return "revoked"
        return "expired" if getattr(key, "is_expired", False) else "active"


def _require(allowed: bool) -> None:
    if not allowed:
        raise PermissionDenied


def _page_of(tenant: Tenant) -> str:
    return reverse("admin:tenants_tenant_change", args=[tenant.pk])


def _list_of(tenant: Tenant, name: str, text: str) -> SafeString:
    url = reverse(f"admin:{name}_changelist", query={"tenant__tenant_id__exact": str(tenant.pk)})
    return link(url, text)
