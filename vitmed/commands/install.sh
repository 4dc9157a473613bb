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
bad=$($sums -c SHA256SUMS 2>/dev/null | grep -v ': OK$' || true)
[ -z "$bad" ] || fail "damaged or missing, copy the bundle again: $bad"
$sums -c SHA256SUMS >/dev/null 2>&1 || fail "SHA256SUMS or the program $sums is missing or damaged"

echo "2/4 making $folder"
command -v "$python" >/dev/null || fail "no $python here; the bundle is for Python $python_version: PYTHON=/path/to/python$python_version sh install.sh"
found=$("$python" -c 'import platform as p, sys; print("%d.%d" % sys.version_info[:2], p.system(), p.machine())')
[ "$found" = "$python_version $platform" ] ||
    fail "$python is Python $found, the bundle is for Python $python_version $platform: PYTHON=/path/to/python$python_version sh install.sh"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP
"$python" -m venv "$folder" >/dev/null ||
    fail "$python -m venv failed; Debian and Ubuntu need the package python3-venv. Another folder: sh install.sh FOLDER"

echo "3/4 installing the packages"
"$folder/bin/python" -m pip --isolated --disable-pip-version-check install --quiet --no-cache-dir --no-index \
    --find-links wheels --require-hashes --no-deps -r requirements.txt || fail "pip cannot install the wheels"

echo "4/4 comparing an answer with the stored one"
for model in $models; do
    case $model in *.onnx) precision=auto ;; *) precision=fp32 ;; esac
    answer=$("$folder/bin/vitmed" predict check/image.png --checkpoint "$model" --device cpu --precision $precision --json --quiet) ||
        fail "$model: vitmed predict failed"
    printf '%s' "$answer" | "$folder/bin/python" check/compare.py "check/${model##*/}.json" ||
        fail "$model answers a stored image otherwise than where the bundle was made"
done

trap - EXIT
cat <<END

Installed. Research use only; not a medical device. Next:

    $folder/bin/vitmed predict IMAGE --checkpoint $here/${models%% *}
END
[ "$serves" = no ] || echo "    $folder/bin/vitmed serve $here/${models%% *}"
