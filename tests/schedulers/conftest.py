"""Fixtures of the backends' tests."""

from __future__ import annotations

from tests.schedulers.pbs_fakes import fake_pbs as fake_pbs
