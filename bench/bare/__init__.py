"""The least that Django can do for one insert and one page: what bench/api.py compares with."""
