#!/bin/sh
# Installs with apt the programs that the tests need and this machine lacks, and says what is missing where it cannot.
# The tests start servers of their own, and need only the programs.
set -eu
PATH="$PATH:/usr/sbin"

missing() {
  command -v nginx > /dev/null || echo nginx
  command -v initdb > /dev/null || ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || echo postgresql
  test -x /usr/bin/chromium-headless-shell || echo chromium-headless-shell
  command -v redis-server > /dev/null || echo redis-server
  command -v valkey-server > /dev/null || echo valkey-server
}

listed() {
  missing | paste -s -d ' '
}

refuse() {
  echo "usechat: the tests need programs that this machine lacks: $(listed)" >&2
  echo "usechat: $1 Install them, as root with: apt-get install $(listed)" >&2
  exit 1
}

command -v npm > /dev/null || {
  echo "usechat: the tests need Node 20 or newer, with npm, and this machine has none" >&2
  exit 1
}
test -n "$(missing)" || exit 0
command -v apt-get > /dev/null || refuse "There is no apt-get here."
apt="env DEBIAN_FRONTEND=noninteractive apt-get --yes --quiet=2"
if test "$(id -u)" != 0; then
  # With -n it asks for no password.
  sudo -n true 2> /dev/null || refuse "This needs root, and sudo is not there or wants a password."
  apt="sudo -n $apt"
fi

echo "usechat: installing with apt what the tests need and this machine lacks: $(listed)"
$apt update
# One that is not to be had must not keep the others away.
for program in $(missing); do
  $apt install --no-install-recommends "$program" || true
done

# Debian 12 has Valkey only among its backports, which a machine need not have among its sources: they are where the
# rest of Debian comes from, and are asked for this once.
if ! command -v valkey-server > /dev/null; then
  . /etc/os-release
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder/lists/partial"
  apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Component: main' 'Created-By: Packages' |
    sed -n "1s|.*|deb & $VERSION_CODENAME main\ndeb & $VERSION_CODENAME-backports main|p" > "$folder/sources.list"
  set -- -o Dir::Etc::SourceList="$folder/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$folder/lists" \
    -o APT::Sandbox::User=root
  $apt "$@" update
  $apt "$@" install --no-install-recommends --target-release "$VERSION_CODENAME-backports" valkey-server || true
fi

test -z "$(missing)" || refuse "apt could not install them."
