"""Addresses of the runs API."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
