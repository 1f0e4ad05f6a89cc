// SPDX-License-Identifier: Apache-2.0
// All of a library of which only the name matters.
