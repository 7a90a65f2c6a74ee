package warder.egress

import data.library.pypi

# METADATA
# title: Install Python packages from PyPI
allow contains {"rule": "pypi-read"} if pypi.read

# METADATA
# title: Upload Python packages to PyPI
allow contains {"rule": "pypi-upload", "credential": "pypi-upload"} if pypi.upload
