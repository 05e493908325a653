#!/bin/sh
# Installs Valkey with apt, as root. Debian 12 has it among its backports only, which a machine need not have among its sources:
# they are where the rest of Debian comes from, and are asked for this once.
set -eu
export DEBIAN_FRONTEND=noninteractive
if apt-get --yes --quiet=2 install --no-install-recommends valkey-server 2> /dev/null; then
  exit
fi
. /etc/os-release
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lists/partial"
apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Component: main' 'Created-By: Packages' |
  sed -n "1s|.*|deb & $VERSION_CODENAME main\ndeb & $VERSION_CODENAME-backports main|p" > "$folder/sources.list"
set -- -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$folder/lists" \
  -o APT::Sandbox::User=root
apt-get --yes --quiet=2 "$@" update
apt-get --yes --quiet=2 "$@" install --no-install-recommends --target-release "$VERSION_CODENAME-backports" valkey-server
