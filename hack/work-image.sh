#!/bin/sh
# Builds the root filesystem that honest work is tested in: Debian with what agents use, and all that it installs later
# without a network.
#
#   hack/work-image.sh DIRECTORY     (new; as root; about four minutes)
#
# Beside Debian's own packages it has
#   /opt/wheels    wheels, and a source package with an extension in C, for pip
#   /opt/npm       a cache for `npm install --offline`
#   /opt/debs      packages for apt-get, one of them made here, with a postinst
#   /opt/sources   the source of two small C projects, as their authors released them
#   user           uid and gid 1000, at home in /home/user
# What is downloaded is downloaded by the programs of the image itself, with the host's network, certificates and names.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$1

packages="adduser bzip2 ca-certificates-java cargo curl default-jdk-headless file g++ gcc gdb git golang-go libc6-dev
    libnode-dev make node-gyp nodejs npm openssl passwd patch pkg-config procps python3 python3-dev python3-pip
    python3-setuptools python3-venv python3-wheel rustc sqlite3 strace sudo util-linux xz-utils"

# Inside: a mount namespace of its own, so that nothing stays mounted.
if [ "${2:-}" != inside ]; then
    exec unshare --mount --pid --fork --propagation private "$0" "$root" inside
fi

# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
url=$(python3 "$here/mirror.py" "$suite")
# shellcheck source=hack/proxy.sh
. "$here/proxy.sh"

# Programs with their documentation left out, as in small images; and without waiting for the disk at each file.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
cat >"$root/etc/dpkg/dpkg.cfg.d/small" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
END
debootstrap --variant=minbase "$suite" "$root" "$url"

printf 'deb %s %s main\ndeb-src %s %s main\n' "$url" "$suite" "$url" "$suite" >"$root/etc/apt/sources.list"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

in_image() {
    chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
        NODE_EXTRA_CA_CERTS=/tmp/certificates PIP_CERT=/tmp/certificates SSL_CERT_FILE=/tmp/certificates "$@"
}
cp /etc/resolv.conf "$root/etc/resolv.conf"
for bundle in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt; do
    [ ! -f "$bundle" ] || { cp "$bundle" "$root/tmp/certificates" && break; }
done

in_image apt-get -q update
# shellcheck disable=SC2086 # a list of words
in_image apt-get -q -y install --no-install-recommends $packages
in_image useradd --create-home --shell /bin/bash --uid 1000 user

# For pip. Pinned: a test must not change by what was released meanwhile.
in_image pip download -q --no-deps --only-binary :all: --dest /opt/wheels \
    numpy==2.2.6 pytest==8.3.3 iniconfig==2.0.0 pluggy==1.5.0 packaging==24.1 setuptools==75.1.0 wheel==0.44.0
in_image pip download -q --no-deps --no-build-isolation --no-binary :all: --dest /opt/wheels markupsafe==2.1.5

# For npm: a package with a dependency.
in_image npm install --silent --no-audit --no-fund --cache /opt/npm --prefix /tmp/npm fill-range@7.1.1
rm -rf "$root/opt/npm/_logs"
chmod -R a+rX "$root/opt/npm"

# For apt: real ones whose dependencies the image has, one with a user for its daemon, and one of our own.
mkdir -p "$root/opt/debs" "$root/opt/sources"
chmod 777 "$root/opt/debs" "$root/opt/sources"
in_image sh -ec 'cd /opt/debs && apt-get -q download hello uuid-runtime'
in_image sh -ec 'cd /opt/sources && apt-get -q source --download-only hello zlib && rm -f ./*.dsc ./*.asc ./*.debian.tar.*'
chmod 755 "$root/opt/debs" "$root/opt/sources"
own=$root/tmp/agentsbx-daemon
mkdir -p "$own/DEBIAN" "$own/usr/lib/agentsbx-daemon" "$own/etc/agentsbx-daemon"
cat >"$own/DEBIAN/control" <<'END'
Package: agentsbx-daemon
Version: 1.0
Architecture: all
Maintainer: Nobody <nobody@invalid>
Depends: adduser
Description: what the scripts of a package do
END
echo /etc/agentsbx-daemon/daemon.conf >"$own/DEBIAN/conffiles"
echo 'setting = 1' >"$own/etc/agentsbx-daemon/daemon.conf"
cat >"$own/usr/lib/agentsbx-daemon/daemon" <<'END'
#!/bin/sh
echo "daemon runs as $(id -un)"
END
chmod 755 "$own/usr/lib/agentsbx-daemon/daemon"
cat >"$own/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
adduser --system --group --quiet --home /var/lib/agentsbx-daemon _agentsbx
install -d -o _agentsbx -g adm -m 2750 /var/log/agentsbx-daemon
chown -R _agentsbx:_agentsbx /var/lib/agentsbx-daemon
chmod 4755 /usr/lib/agentsbx-daemon/daemon
update-alternatives --install /usr/bin/agentsbx-daemon agentsbx-daemon /usr/lib/agentsbx-daemon/daemon 10
ldconfig
END
cat >"$own/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
update-alternatives --remove agentsbx-daemon /usr/lib/agentsbx-daemon/daemon
END
chmod 755 "$own/DEBIAN/postinst" "$own/DEBIAN/prerm"
in_image dpkg-deb --root-owner-group --build /tmp/agentsbx-daemon /opt/debs

umount "$root/dev" "$root/proc"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/* \
    "$root"/tmp/* "$root"/root/.npm "$root"/root/.cache "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/locale \
    "$root/usr/sbin/policy-rc.d" "$root/etc/resolv.conf"
