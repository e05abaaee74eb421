# shellcheck shell=sh
# To be sourced: what is downloaded goes by the proxy that apt-get uses, where the environment names none.
if [ -z "${http_proxy:-}" ]; then
    proxy=""
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || export http_proxy="$proxy"
fi
