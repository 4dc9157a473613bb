#!/bin/sh
# Installs this bundle without a network, and checks that the model answers as it did where the bundle was made.
#
#     sh install.sh [FOLDER]      a new folder for the programs; default venv, beside this file
#
# PYTHON names another Python than python3. It writes nothing but that folder.
set -eu
unset PYTHONPATH PYTHONHOME

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

case "${1:-}" in -*) fail "usage: sh install.sh [FOLDER]" ;; esac
started=$(pwd)
cd "$(dirname "$0")"
here=$(pwd)
folder=${1:-$here/venv}
case $folder in /*) ;; *) folder=$started/$folder ;; esac
python=${PYTHON:-python3}

[ ! -e "$folder" ] || fail "$folder is there already; name another folder: sh install.sh FOLDER"

echo "1/4 comparing the sha256 of every file"
if command -v sha256sum >/dev/null; then sums=sha256sum; else sums="shasum -a 256"; fi
# The exit code decides. LC_ALL: in another language the lines that name the files end otherwise.
checked=$(LC_ALL=C $sums -c SHA256SUMS 2>/dev/null) ||
    fail "a file is damaged or missing, copy the bundle again: $(printf '%s\n' "$checked" | sed '/: OK$/d')"
wanted=$(cat machine.txt)

echo "2/4 making $folder"
again="the bundle is for Python $wanted: PYTHON=/path/to/python${wanted%% *} sh install.sh"
command -v "$python" >/dev/null || fail "no $python here; $again"
found=$("$python" -c 'import platform as p, sys; print("%d.%d" % sys.version_info[:2], p.system(), p.machine())')
[ "$found" = "$wanted" ] || fail "$python is Python $found, $again"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP
"$python" -m venv "$folder" >/dev/null ||
    fail "$python -m venv failed; Debian and Ubuntu need the package python3-venv. Another folder: sh install.sh FOLDER"

echo "3/4 installing the packages"
"$folder/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-cache-dir --no-index \
    --find-links wheels --require-hashes --no-deps -r requirements.txt || fail "pip cannot install the wheels"

echo "4/4 comparing an answer with the stored one"
for stored in check/*.json; do
    model=${stored#check/}
    model=model/${model%.json}
    first=${first:-$model}
    case $model in *.onnx) precision= ;; *) precision="--precision fp32" ;; esac  # an exported file has one of its own
    # shellcheck disable=SC2086
    answer=$("$folder/bin/vitmed" predict check/image.png --checkpoint "$model" --device cpu $precision --json --quiet) ||
        fail "$model: vitmed predict failed"
    # The same text, and numbers within 0.001: another processor computes the last digits otherwise.
    "$folder/bin/python" - "$stored" "$answer" <<'END' || fail "$model answers a stored image otherwise than where the bundle was made"
import json, math, re, sys
number = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
stored, found = json.dumps(json.load(open(sys.argv[1], encoding="utf-8"))), json.dumps(json.loads(sys.argv[2]))
pairs = zip(number.findall(stored), number.findall(found))
near = all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-3) for a, b in pairs)
same = number.sub("#", stored) == number.sub("#", found)
sys.exit(0 if same and near else f"found {found}\nexpected {stored}")
END
done

trap - EXIT
cat <<END

Installed. Research use only; not a medical device. Next:

    $folder/bin/vitmed predict IMAGE --checkpoint $here/$first
END
! grep -q '^uvicorn==' requirements.txt || echo "    $folder/bin/vitmed serve $here/$first"
