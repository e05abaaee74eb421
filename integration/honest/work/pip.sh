# Installs wheels and a package with an extension in C: for the whole system as root, in a virtual environment, and as
# root and user with --user. Nothing is fetched.
set -e
cd "$HOME"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/opt/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

python3 -m venv venv
venv/bin/pip install -q numpy pytest setuptools wheel
venv/bin/python - <<'END'
import numpy
a = numpy.arange(250_000, dtype=numpy.float64).reshape(500, 500) % 7
print("numpy", numpy.__version__, int((a @ a).trace()), round(float(numpy.linalg.det(numpy.eye(50) * 2.0) / 2**50), 6))
END
venv/bin/pip install -q --no-build-isolation --no-binary :all: markupsafe
venv/bin/python -c 'import markupsafe, markupsafe._speedups as s; print("venv", s.escape("<b>"), s.__file__.endswith(".so"))'

# Debian wants to be told that what it installed itself may be mixed with this.
python3 -m pip install -q --user --break-system-packages --no-build-isolation --no-binary :all: markupsafe
python3 -c 'import markupsafe._speedups as s; print("user", s.escape("&"), s.__file__.startswith("'"$HOME"'/.local"))'
if [ "$(id -u)" = 0 ]; then
    pip install -q --break-system-packages packaging
    python3 -c 'import packaging as p; print("system", p.__version__, p.__file__)'
    pip uninstall -q -y --break-system-packages packaging
    python3 -c 'import packaging' 2>/dev/null || echo "system without it"
fi
venv/bin/pip list --format freeze | grep -i -e numpy -e markupsafe -e pytest
