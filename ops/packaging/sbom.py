#!/usr/bin/env python3
"""sbom.py VERSION ARCH LINKED - print the bill of materials (SPDX 2.3, JSON) of the static program

The parts are those of ops/packaging/static/sources.list: source packages with the SHA-256 of their upstream archive, and
Debian packages with the versions in the file LINKED, which libraries.sh wrote; further the C library and the run-time
library of the compiler, whose versions are this machine's. Times are SOURCE_DATE_EPOCH.
"""
import json
import os
import subprocess
import sys
import time


def installed(package):
    """Return the version of an installed Debian package."""
    return subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], check=True, capture_output=True,
                          text=True).stdout


def parts(arch, linked):
    """Yield (name, version, licence, SHA-256 of the source or None) of each part."""
    with open(linked, encoding="utf-8") as f:
        versions = {row.split()[0]: row.split()[1:] for row in f}
    source = None
    with open("ops/packaging/static/sources.list", encoding="utf-8") as f:
        for row in f:
            word = row.split()
            if row.startswith("package "):
                source = word[1:4]
            elif row.startswith("linked "):
                version, name = versions[word[1]]
                yield name or word[1], version, word[2], None
            elif len(word) == 2 and ".orig.tar" in word[1] and source[0] != "cmocka":
                yield *source, word[0]
    cross = "" if arch == os.uname().machine else "-arm64-cross"
    yield "glibc", installed("libc6-dev" + cross), "LGPL-2.1-or-later", None
    release = subprocess.run(["gcc", "-dumpversion"], check=True, capture_output=True, text=True).stdout.strip()
    yield "gcc", installed(f"libgcc-{release}-dev{cross}"), "GPL-3.0-or-later WITH GCC-exception-3.1", None


def package(name, version, licence, sha256):
    entry = {"SPDXID": "SPDXRef-" + name, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
             "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence,
             "copyrightText": "NOASSERTION"}
    if name != "shardkit":
        entry["supplier"] = "Organization: Debian"
        entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                  "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch=source"}]
    if sha256:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    return entry


def main():
    version, arch, linked = sys.argv[1:4]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    found = sorted(parts(arch, linked))
    name = f"shardkit-{version}-linux-{arch}"
    print(json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
        "documentNamespace": f"https://shardkit.invalid/spdx/{name}-{os.environ.get('COMMIT', 'unknown')}",
        "creationInfo": {"created": when, "creators": ["Tool: shardkit-sbom.py"]},
        "hasExtractedLicensingInfos": [{"licenseId": "LicenseRef-public-domain",
                                        "extractedText": "liblzma is in the public domain."}],
        "packages": [package("shardkit", version, "Apache-2.0", None)] + [package(*p) for p in found],
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                           "relatedSpdxElement": "SPDXRef-shardkit"}] +
        [{"spdxElementId": "SPDXRef-shardkit", "relationshipType": "STATIC_LINK",
          "relatedSpdxElement": "SPDXRef-" + p[0]} for p in found],
    }, indent=1))


if __name__ == "__main__":
    main()
