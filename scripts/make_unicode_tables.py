"""Writes src/tokenizer/unicode_tables.cc: the classes of characters as the engines in the library `tokenizers` know them.

Usage:  pip install tokenizers==0.23.3 unicodedata2==17.0.1 && python scripts/make_unicode_tables.py > src/tokenizer/unicode_tables.cc

The library is asked about every character, since its engines know different versions of Unicode: its regular expressions 16, its lower
case and its numbers 17, its normal forms and its punctuation older ones.
"""
import re

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

# The planes that have characters with properties; those behind have characters for private use alone.
POINTS = [c for c in [*range(0x40000), *range(0xe0000, 0xe1000)] if not 0xd800 <= c < 0xe000]
TEXT = "".join(map(chr, POINTS))
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co".split()
SCRIPTS = """Adlm=Adlam Aghb=Caucasian_Albanian Ahom=Ahom Arab=Arabic Armi=Imperial_Aramaic Armn=Armenian Avst=Avestan Bali=Balinese
Bamu=Bamum Bass=Bassa_Vah Batk=Batak Beng=Bengali Bhks=Bhaiksuki Bopo=Bopomofo Brah=Brahmi Brai=Braille Bugi=Buginese Buhd=Buhid
Cakm=Chakma Cans=Canadian_Aboriginal Cari=Carian Cham=Cham Cher=Cherokee Chrs=Chorasmian Copt=Coptic=Qaac Cpmn=Cypro_Minoan
Cprt=Cypriot Cyrl=Cyrillic Deva=Devanagari Diak=Dives_Akuru Dogr=Dogra Dsrt=Deseret Dupl=Duployan Egyp=Egyptian_Hieroglyphs
Elba=Elbasan Elym=Elymaic Ethi=Ethiopic Gara=Garay Geor=Georgian Glag=Glagolitic Gong=Gunjala_Gondi Gonm=Masaram_Gondi Goth=Gothic
Gran=Grantha Grek=Greek Gujr=Gujarati Gukh=Gurung_Khema Guru=Gurmukhi Hang=Hangul Hani=Han Hano=Hanunoo Hatr=Hatran Hebr=Hebrew
Hira=Hiragana Hluw=Anatolian_Hieroglyphs Hmng=Pahawh_Hmong Hmnp=Nyiakeng_Puachue_Hmong Hung=Old_Hungarian Ital=Old_Italic
Java=Javanese Kali=Kayah_Li Kana=Katakana Kawi=Kawi Khar=Kharoshthi Khmr=Khmer Khoj=Khojki Kits=Khitan_Small_Script Knda=Kannada
Krai=Kirat_Rai Kthi=Kaithi Lana=Tai_Tham Laoo=Lao Latn=Latin Lepc=Lepcha Limb=Limbu Lina=Linear_A Linb=Linear_B Lisu=Lisu Lyci=Lycian
Lydi=Lydian Mahj=Mahajani Maka=Makasar Mand=Mandaic Mani=Manichaean Marc=Marchen Medf=Medefaidrin Mend=Mende_Kikakui
Merc=Meroitic_Cursive Mero=Meroitic_Hieroglyphs Mlym=Malayalam Modi=Modi Mong=Mongolian Mroo=Mro Mtei=Meetei_Mayek Mult=Multani
Mymr=Myanmar Nagm=Nag_Mundari Nand=Nandinagari Narb=Old_North_Arabian Nbat=Nabataean Newa=Newa Nkoo=Nko Nshu=Nushu Ogam=Ogham
Olck=Ol_Chiki Onao=Ol_Onal Orkh=Old_Turkic Orya=Oriya Osge=Osage Osma=Osmanya Ougr=Old_Uyghur Palm=Palmyrene Pauc=Pau_Cin_Hau
Perm=Old_Permic Phag=Phags_Pa Phli=Inscriptional_Pahlavi Phlp=Psalter_Pahlavi Phnx=Phoenician Plrd=Miao Prti=Inscriptional_Parthian
Rjng=Rejang Rohg=Hanifi_Rohingya Runr=Runic Samr=Samaritan Sarb=Old_South_Arabian Saur=Saurashtra Sgnw=SignWriting Shaw=Shavian
Shrd=Sharada Sidd=Siddham Sind=Khudawadi Sinh=Sinhala Sogd=Sogdian Sogo=Old_Sogdian Sora=Sora_Sompeng Soyo=Soyombo Sund=Sundanese
Sunu=Sunuwar Sylo=Syloti_Nagri Syrc=Syriac Tagb=Tagbanwa Takr=Takri Tale=Tai_Le Talu=New_Tai_Lue Taml=Tamil Tang=Tangut Tavt=Tai_Viet
Telu=Telugu Tfng=Tifinagh Tglg=Tagalog Thaa=Thaana Thai=Thai Tibt=Tibetan Tirh=Tirhuta Tnsa=Tangsa Todr=Todhri Toto=Toto
Tutg=Tulu_Tigalari Ugar=Ugaritic Vaii=Vai Vith=Vithkuqi Wara=Warang_Citi Wcho=Wancho Xpeo=Old_Persian Xsux=Cuneiform Yezi=Yezidi Yiii=Yi
Zanb=Zanabazar_Square Zinh=Inherited=Qaai Zyyy=Common""".split()
# Properties beside categories and scripts, and the categories of which each has the most.
PROPERTIES = [("alphabetic", ["Lu", "Ll", "Lt", "Lm", "Lo", "Nl"]), ("uppercase", ["Lu"]), ("lowercase", ["Ll"]), ("emoji", []),
              ("extendedpictographic", []), ("ideographic", [])]


def class_of(pattern, text=TEXT, points=POINTS):
    found = set()
    for _, (begin, end) in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(text):
        found.update(points[begin:end])
    return found


def runs_of(points):
    runs = []
    for c in sorted(points):
        if runs and (runs[-1][1] == c - 1 or (runs[-1][1], c) == (0xd7ff, 0xe000)):
            runs[-1][1] = c
        else:
            runs.append([c, c])
    return runs


def print_list(items):
    line = " "
    for item in items:
        if len(line) + len(item) > 118:
            print(line)
            line = " "
        line += f" {item},"
    if line.strip():
        print(line)
    print("};\n")


def print_ranges(name, points):
    runs = runs_of(points)
    print(f"const CodeRange {name}[] = {{" if runs else f"const CodeRange {name}[1] = {{")
    print_list(f"{{0x{a:x}, 0x{b:x}}}" for a, b in runs)
    return f"{{{name}, {len(runs)}}}"


def print_starts(name, value_of, shift):
    """One number for each run of characters with one value: the first character and the value."""
    starts, last = [], None
    for c in POINTS:
        if value_of.get(c, 0) != last:
            last = value_of.get(c, 0)
            starts.append(f"0x{c << shift | last:x}")
    print(f"const std::uint32_t {name}[] = {{")
    print_list(starts)
    return f"{{{name}, {len(starts)}}}"


def print_mapping(name, pairs):
    """Runs of characters, one or two apart, that map to characters at one distance."""
    runs = []
    for c, to in sorted(pairs):
        run = runs[-1] if runs else None
        if run and run[3] == to - c and c - run[1] == (run[2] or c - run[1]) and c - run[1] <= 2:
            run[1], run[2] = c, c - run[1]
        else:
            runs.append([c, c, 0, to - c])
    print(f"const CodeMapping {name}[] = {{")
    print_list(f"{{0x{a:x}, 0x{b:x}, {step or 1}, {by}}}" for a, b, step, by in runs)
    return f"{{{name}, {len(runs)}}}"


def main():
    print(f"""// Made by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.
#include "tokenizer/unicode_tables.h"

namespace switchyard {{
namespace {{

// clang-format off""")
    category, script = {}, {}
    for i, name in enumerate(CATEGORIES):
        category.update(dict.fromkeys(class_of(rf"\p{{{name}}}+"), i))
    members = {name: {c for c, k in category.items() if CATEGORIES[k] == name} for name in CATEGORIES}
    fields = {"categories": print_starts("kCategories", category, 5)}
    for i, names in enumerate(SCRIPTS):
        script.update(dict.fromkeys(class_of(rf"\p{{{names.split('=')[1]}}}+"), i + 1))
    fields["scripts"] = print_starts("kScripts", script, 8)
    print("const char* const kScriptNames[] = {")
    print_list(f'"{"=".join([n.replace("_", "") for n in names.split("=")]).lower()}"' for names in SCRIPTS)
    fields["script_names"] = f"{{kScriptNames, {len(SCRIPTS)}}}"
    for name, base in PROPERTIES:
        has, expected = class_of(rf"\p{{{name}}}+"), set().union(*(members[b] for b in base))
        assert not expected - has or name == "lowercase", name
        fields[name] = print_ranges("k" + name.capitalize(), has - expected)
    letters = [c for c in POINTS if CATEGORIES[category.get(c, 27)][0] in "LSNM" and len({chr(c), chr(c).lower(), chr(c).upper(),
               chr(c).casefold(), *re.findall(".", normalizers.Lowercase().normalize_str(chr(c)))}) > 1 or 0x10d50 <= c <= 0x10d85
               or c in (0x19b, 0x264, 0x1c89, 0x1c8a) or 0xa7cb <= c <= 0xa7dc]
    apart = "\n".join(map(chr, letters))
    folded = []
    for c in letters:
        same = class_of(rf"(?i:\x{{{c:x}}})", apart, [p for letter in letters for p in (letter, 0xa)])
        lowest = min(same | {c})
        if lowest != c:
            folded.append((c, lowest))
    fields["folded"] = print_mapping("kFolded", folded)
    lower = [(c, normalizers.Lowercase().normalize_str(chr(c))) for c in POINTS]
    fields["lower"] = print_mapping("kLower", [(c, ord(to)) for c, to in lower if len(to) == 1 and to != chr(c)])
    between = "".join("a" + chr(c) for c in POINTS) + "a"

    def alone(pre_tokenizer):
        return {ord(piece) for piece, (a, b) in pre_tokenizer.pre_tokenize_str(between) if b - a == 1 and a % 2 == 1}
    fields["numbers"] = print_ranges("kNumbers", alone(pre_tokenizers.Digits(True)))
    fields["old_punctuation"] = print_ranges("kOldPunctuation", alone(pre_tokenizers.Punctuation()))
    strip = normalizers.StripAccents()
    fields["old_marks"] = print_ranges("kOldMarks", [c for c in POINTS if strip.normalize_str(chr(c)) == ""])
    accents = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    fields["old_nonspacing"] = print_ranges("kOldNonspacing", [c for c in POINTS if accents.normalize_str(chr(c)) == ""])
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    fields["old_other"] = print_ranges("kOldOther", [c for c in POINTS if clean.normalize_str(chr(c)) == ""])
    fields["beyond_normal"] = print_ranges("kBeyondNormal", beyond_normal())
    print("// clang-format on\n\n}  // namespace\n\nconst UnicodeTables& unicode_tables() {\n  static const UnicodeTables tables{")
    print(",\n".join(f"      .{name} = {value}" for name, value in fields.items()) + "};\n  return tables;\n}\n\n}  // namespace switchyard")


def beyond_normal():
    """Characters that a newer Unicode decomposes, composes or reorders and the library does not."""
    import unicodedata2 as newest
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    beyond = set()
    for c in POINTS:
        text = chr(c)
        if nfd.normalize_str(text) != newest.normalize("NFD", text):
            beyond.update([c, *(ord(p) for p in newest.normalize("NFD", text) if ord(p) >= 0x10000)])
        if nfkd.normalize_str(text) != newest.normalize("NFKD", text):
            beyond.add(c)
        kind = newest.combining(text)
        test = f"a{text}\u0334" if kind > 1 else f"a\u0300{text}"
        if kind and nfd.normalize_str(test) != newest.normalize("NFD", test):
            beyond.add(c)
    return beyond


if __name__ == "__main__":
    main()
