"""conf/site/example.yaml shows every setting of a site."""

from __future__ import annotations

import dataclasses
import re

from brorl_launcher.site import Site, site_file

EXAMPLE = site_file("example").read_text(encoding="utf-8")


def test_the_example_of_a_site_has_every_setting_as_a_key_or_as_a_comment() -> None:
    shown = set(re.findall(r"^(?:# )?(\w+):", EXAMPLE, re.MULTILINE))
    assert {field.name for field in dataclasses.fields(Site)} - shown == set()
