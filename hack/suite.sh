# shellcheck shell=sh
# To be sourced: packages of any of Debian's releases, downloaded and unpacked, not installed. apt-get does it, with the
# proxies it is set up with: it checks the signature of the release, by Debian's own keyring, and every file's checksum.
# Other than the machine's own its lists and settings here know nothing.
#
# $here is the directory that this file is in. Descriptor 9 is the callers' lock, and not for apt-get: what it leaves
# running would keep it.

# suite_apt DIRECTORY PROGRAM [ARGUMENT...]: apt-get or apt-cache, with the lists of DIRECTORY.
suite_apt() {
    directory=$1 program=$2
    shift 2
    "$program" -q -o Dir::Etc::SourceList="$directory/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State="$directory" -o Dir::State::status="$directory/status" -o Dir::Cache="$directory/cache" \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 "$@" 9>&-
}

# suite_lists DIRECTORY SUITE: what the release has now.
suite_lists() {
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/debs"
    : >"$1/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(python3 "${here:?}/mirror.py" "$2") $2 main" \
        >"$1/sources.list"
    suite_apt "$1" apt-get update
}

# suite_get DIRECTORY PACKAGE...: into DIRECTORY/debs.
suite_get() {
    where=$1
    shift
    (cd "$where/debs" && suite_apt "$where" apt-get download "$@")
}

# suite_unpack DIRECTORY ROOT: what was downloaded.
suite_unpack() {
    mkdir -p "$2"
    for package in "$1"/debs/*.deb; do
        dpkg-deb --extract "$package" "$2"
    done
}
