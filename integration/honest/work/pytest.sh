# Runs a test suite that uses what test suites use.
set -e
cd "$HOME"
python3 -m venv tested
tested/bin/pip install -q --no-index --find-links /opt/wheels pytest
cp -r /srv/work/python project
cd project
../tested/bin/pytest -q -p no:randomly --tb short --junitxml ../report.xml >../tests.log || cat ../tests.log
tail -1 ../tests.log | sed 's/ in .*//'
grep -o 'tests="[0-9]*"' ../report.xml
