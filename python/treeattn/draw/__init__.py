# SPDX-License-Identifier: Apache-2.0
"""Pictures of draft trees: for the terminal, and as SVG. Needs neither torch nor the extension."""

from treeattn.draw.picture import Picture, from_json, from_paths
from treeattn.draw.svg import to_svg
from treeattn.draw.terminal import print_tree, to_text

__all__ = ["Picture", "from_json", "from_paths", "print_tree", "to_svg", "to_text"]
