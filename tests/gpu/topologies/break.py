#!/usr/bin/env python3
"""Makes broken topology files, and unusual ones that NCCL accepts, from one that railgate wrote.

    break.py good.xml DIRECTORY

writes DIRECTORY/<name>.xml for each case and DIRECTORY/expected.txt: name, the result of NCCL 2.28.9
(refused or accepted), and its log message or other reaction. A new case is a row of CASES.
"""
import os
import re
import sys


def sub(pattern, to, count=1):
    """Returns a function that replaces the first match. A pattern can start at the first GPU's bridge."""
    return lambda text: re.sub(pattern, to, text, count=count, flags=re.S)


def many(text):
    """One element more than NCCL's reader can hold, none of them with a device."""
    extra = 256 - len(re.findall(r"<[a-z]", text))
    cpus = "".join(
        "<cpu numaid=\"%d\">%s</cpu>\n"
        % (100 + at, "".join('<pci busid="fff0:%02x:%02x.0"/>' % (at, k) for k in range(min(29, extra - 1 - at * 30))))
        for at in range((extra + 29) // 30)
    )
    text = text.replace("</system>", cpus + "</system>")
    missing = 256 - len(re.findall(r"<[a-z]", text))
    return text.replace("</system>", "<cpu/>" * missing + "</system>")


GPU = r'(<pci busid="(?!ffff:)[^"]*" class="0x0302[^>]*?)/>'
BRIDGE = r'(<pci busid="ffff:ff:01.0") class="0x060400"'

REFUSED = [
    ("tab", sub(r"\n  <cpu", "\n\t<cpu"), "expecting '<', got a tab"),
    ("prolog", lambda text: '<?xml version="1.0"?>\n' + text, "expected >, got '?'"),
    ("newline-in-tag", sub(r"(<pci busid=\"[^\"]*\") ", r"\1\n"), "expected >, got a newline"),
    ("no-quotes", sub(r'numaid="(\d+)"', r"numaid=\1"), "Expected (double) quote"),
    ("cpu-not-closed", sub(r"  </cpu>\n", ""), "XML Mismatch : cpu / system"),
    ("version-2", sub(r'version="1"', 'version="2"'), "wrong version 2, 1 needed"),
    ("no-version", sub(r' version="1"', ""), "Attribute version of node system not found"),
    ("value-of-254-bytes", sub(r'version="1"', 'version="1" name="' + "n" * 254 + '"'), "value .. too long"),
    ("256-elements", many, "limited to 256 nodes"),
    ("text-at-the-end", lambda text: text + "end\n", "expecting '<', got 'e'"),
    ("comment-with-equals", lambda text: "<!--a=b-->\n" + text, "Unexpected value with name !--a"),
    ("space-in-closing-tag", sub(r"</cpu>", "</cpu >"), "unexpected trailing"),
    ("cut-short", lambda text: text[: text.rindex("</system>")], "unterminated system"),
    ("bridge-without-class", sub(BRIDGE, r"\1"), "Attribute class of node pci not found"),
    ("bridge-with-class-of-a-nic", sub(BRIDGE, r'\1 class="0x020000"'), "its GPU is in no graph: could not find rank or GPU"),
    ("no-numaid", sub(r' numaid="\d+"', ""), "could not find CPU numa ID, or Attribute numaid of node cpu not found"),
    ("family-without-model", sub(r' modelid="\d+"', ""), "Attribute modelid of node cpu not found (Intel only)"),
    (
        "nvlink-without-count",
        sub(GPU, r'\1><gpu><nvlink target="fffffff:ffff:ff" tclass="0x068000"/></gpu></pci>'),
        "Attribute count of node nvlink not found",
    ),
    ("gpu-dev-minus-1", sub(GPU, r'\1><gpu dev="-1"/></pci>'), "the GPU is in no graph: could not find rank"),
    (
        "gpu-below-a-gpu",
        lambda text: re.sub(GPU + r"(.*?)" + GPU, r"\1>\3/></pci>\2", text, count=1, flags=re.S),
        "the second GPU is in no graph: could not find rank",
    ),
]

ACCEPTED = [
    ("good", lambda text: text, "every GPU under its own bridge"),
    ("comments", lambda text: "<!-- made by hand: a = b -->\n" + text.replace("<system", "<!----><system", 1), "as good"),
    ("single-quotes", sub(r'version="1"', "version='1'"), "as good (refused before 2.27.3)"),
    ("two-spaces", sub(r'(<pci busid="[^"]*") ', r"\1  "), "an attribute without a name in the dump"),
    ("space-before-the-end", sub(r'link_width="16"/>', 'link_width="16" />'), "an attribute without a name in the dump"),
    ("carriage-returns", lambda text: text.replace("\n", "\r\n"), "as good"),
    ("one-line", lambda text: re.sub(r"\n *", "", text), "as good"),
    ("value-of-253-bytes", sub(r'version="1"', 'version="1" name="' + "n" * 253 + '"'), "as good"),
    ("17-attributes", sub(r'version="1"', 'version="1"' + "".join(f' a{k}=""' for k in range(16))), "as good, the last one dropped"),
    ("unknown-elements", sub(r"<cpu", "<note><pci/></whatever><cpu"), "as good"),
    ("upper-case-gpu", lambda text: re.sub(GPU, lambda m: re.sub(r'busid="([^"]*)"', lambda b: 'busid="%s"' % upper(b.group(1)), m.group(0)), text, count=1, flags=re.S), "that GPU outside of its bridge"),
    ("unknown-speed", sub(r"32\.0 GT/s PCIe", "32.0 GT/s"), "that link at 12 GB/s"),
    ("empty", lambda text: "", "as without a file"),
    ("only-a-comment", lambda text: "<!-- later -->\n", "as without a file"),
    ("wrong-bridge", lambda text: swap(text), "two GPUs under each other's bridge"),
]


def upper(busid):
    """Converts to upper case; a bus id without letters gets the letter A as its last digit."""
    return busid.upper() if busid.upper() != busid else busid[:-1] + "A"


def swap(text):
    ids = re.findall(r'busid="((?!ffff:)[^"]*)" class="0x0302', text)
    if len(ids) < 2:
        return text
    first, second = ids[0], ids[1]
    return text.replace(first, "\0").replace(second, first).replace("\0", second)


def main():
    good, folder = open(sys.argv[1]).read(), sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    gpus = len(re.findall(GPU, good, flags=re.S))
    with open(os.path.join(folder, "expected.txt"), "w") as expected:
        for verdict, cases in (("refused", REFUSED), ("accepted", ACCEPTED)):
            for name, change, what in cases:
                text = change(good)
                if text == good and name != "good":
                    if gpus < 2 and name in ("gpu-below-a-gpu", "wrong-bridge"):
                        continue
                    sys.exit(f"{name}: nothing was changed")
                with open(os.path.join(folder, name + ".xml"), "w", newline="") as out:
                    out.write(text)
                expected.write(f"{name}\t{verdict}\t{what}\n")


main()
