#!/usr/bin/env bash
# Amazon's DynamoDB Local, the second judge of the store tests, into the ignored folder .cache/dynamodb-local.
# Comes inside an npm package (57 MB); does nothing where it lies there already. Needs npm, tar, sha256sum.
set -euo pipefail
cd "$(dirname "$0")/.."

package=amplify-dynamodb-simulator
version=2.9.30
sha256=3503ffac19f183407909fecdacf4db51ab1fdad1da7b2f177016670b2d80e4b9
folder=.cache/dynamodb-local

fail() {
  echo "DynamoDB Local cannot be had: $1" >&2
  exit 1
}

if [ -f "$folder/DynamoDBLocal.jar" ] && [ "$(cat "$folder/.sha256" 2>/dev/null)" = "$sha256" ]; then
  exit 0
fi

for tool in npm tar sha256sum; do
  command -v "$tool" >/dev/null 2>&1 || fail "there is no $tool here. Nothing was changed. Install it (npm comes with nodejs)."
done

mkdir -p .cache
work=$(mktemp -d .cache/fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT

echo "Fetching $package $version ..."
(cd "$work" && npm pack --silent "$package@$version" >/dev/null) ||
  fail "npm pack $package@$version failed, see above. Nothing was changed. Is the npm registry reachable?"
archive=$work/$package-$version.tgz
found=$(sha256sum "$archive" | cut -d ' ' -f 1)
[ "$found" = "$sha256" ] || fail "the package's sha256 is $found, not $sha256. Nothing was unpacked."

tar -xzf "$archive" -C "$work" package/emulator || fail "the package does not unpack."
[ -f "$work/package/emulator/DynamoDBLocal.jar" ] || fail "there is no DynamoDBLocal.jar in the package."
echo "$sha256" >"$work/package/emulator/.sha256"
rm -rf "$folder"
mv "$work/package/emulator" "$folder"
echo "DynamoDB Local is in $folder."
