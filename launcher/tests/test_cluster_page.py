"""docs/howto/cluster.md explains every setting of a site."""

from __future__ import annotations

import dataclasses

from brorl_launcher.packages import code_root
from brorl_launcher.site import Site

PAGE = (code_root() / "docs" / "howto" / "cluster.md").read_text(encoding="utf-8")


def test_every_setting_of_a_site_is_explained() -> None:
    assert [field.name for field in dataclasses.fields(Site) if f"`{field.name}`" not in PAGE] == []
