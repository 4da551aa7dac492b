#!/usr/bin/env bash
# Chromium from Debian for the tests of pages, where that can be done: root and apt. Exit code 3 with the reason where it cannot.
set -euo pipefail

for program in chromium chromium-browser google-chrome; do
  command -v "$program" >/dev/null && exit 0
done

refuse() {
  echo "There is no Chromium and it cannot be installed: $1. The tests of pages are skipped." >&2
  exit 3
}
[[ $(id -u) == 0 ]] || refuse "this is not root"
command -v apt-get >/dev/null || refuse "there is no apt-get"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >&2 || refuse "apt-get update failed"
apt-get install -y -qq --no-install-recommends chromium >/dev/null || refuse "apt-get install failed"
