# SPDX-License-Identifier: Apache-2.0
"""`python -m treeattn`, the same as the command `treeattn`."""

import sys

from treeattn.cli import main

sys.exit(main())
