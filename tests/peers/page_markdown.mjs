// Checks what the chat page makes of Markdown: node tests/peers/page_markdown.mjs src/serve/page/page.html
// The page's own functions run over a document that only keeps nodes.
import {readFileSync} from "node:fs";

class Node {
  constructor(tag) { this.tag = tag; this.attributes = {}; this.childNodes = []; this.children = []; }
  get lastChild() { return this.childNodes.at(-1); }
  get textContent() { return this.childNodes.map((child) => child instanceof Node ? child.textContent : child).join(""); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  // `children` is live, as a browser's is.
  set(nodes) {
    this.childNodes = nodes;
    this.children.splice(0, Infinity, ...nodes.filter((node) => node instanceof Node));
    for (const node of this.children) node.parent = this;
  }
  append(...nodes) { this.set([...this.childNodes, ...nodes]); }
  prepend(...nodes) { this.set([...nodes, ...this.childNodes]); }
  replaceChildren(...nodes) { this.set(nodes); }
  appendChild(node) { this.append(node); return node; }
  replaceChild(node, old) { this.set(this.childNodes.map((child) => child === old ? node : child)); }
  remove() { this.parent.set(this.parent.childNodes.filter((child) => child !== this)); }
  all(tag) { return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.all(tag)]); }
}

const page = readFileSync(process.argv[2], "utf8");
const script = /<script>([^]*?)<\/script>/.exec(page)[1];
const functions = script.slice(script.indexOf("function make"), script.indexOf("// ---- Conversations"));
const document = {createElement: (tag) => new Node(tag)};
const markdown = new Function("document", functions + "; return markdown;")(document);
const shown = (text) => markdown(new Node("div"), text);

let faults = 0;
function check(text, got, expected) {
  if (JSON.stringify(got) === JSON.stringify(expected)) return;
  ++faults;
  console.log(`${JSON.stringify(text)}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(got)}`);
}

const links = {
  "[a](https://example.org/a_b_(c)) x": ["https://example.org/a_b_(c)"],
  "[a](https://example.org/a_(b_(c))_d)": ["https://example.org/a_(b_(c))_d"],
  "([a](https://example.org/x))": ["https://example.org/x"],
  '[a](https://example.org/p "title") z': ["https://example.org/p"],
  "[a](https://example.org/p 'title')": ["https://example.org/p"],
  "[a](<https://example.org/x y>) z": ["https://example.org/x y"],
  "[a [b] c](https://example.org/q)": ["https://example.org/q"],
  "[**a** `b`](https://example.org/q)": ["https://example.org/q"],
  "see https://example.org/plain now": ["https://example.org/plain"],
  "see https://example.org/plain.": ["https://example.org/plain"],
  "(https://example.org/a_(b))": ["https://example.org/a_(b)"],
  "(see https://example.org/x?a=1&b=2), then": ["https://example.org/x?a=1&b=2"],
  "<https://example.org/a>": ["https://example.org/a"],
  "www.example.org/a, too": ["http://www.example.org/a"],
  "**https://example.org/a_b_c**": ["https://example.org/a_b_c"],
  "https://example.org/a_b_c and [d](https://example.org/d_e_f)": ["https://example.org/a_b_c", "https://example.org/d_e_f"],
  "[https://example.org/x](https://example.org/y)": ["https://example.org/y"],
  "![a picture](https://example.org/p.png)": ["https://example.org/p.png"],
  "![](https://example.org/p.png)": ["https://example.org/p.png"],
  "[![badge](https://example.org/p.png)](https://example.org/q)": ["https://example.org/q"],
  "`https://example.org/code`": [],
  "```\nhttps://example.org/code\n```": [],
  "[a](javascript:alert(1))": [],
  "| a |\n|---|\n| https://example.org/t |": ["https://example.org/t"],
};
for (const [text, expected] of Object.entries(links)) check(text, shown(text).all("a").map((link) => link.attributes.href), expected);
check("title", shown('[a](https://example.org/p "a title")').all("a")[0].attributes.title, "a title");
check("label", shown("[**a** b](https://example.org/q)").all("strong").map((node) => node.textContent), ["a"]);
check("image", shown("![a picture](https://example.org/p.png)").textContent, "a picture");
check("no image", shown("![a](https://example.org/p.png)").all("img").length, 0);

// Mathematics is shown as it was written.
for (const text of ["so \\(a+b\\) is", "so \\(a_1 * b_1 * c\\) is", "$a_1 + b_1$ and $c*d*e$", "so $x$ is", "$$a_1 * b * c$$",
                    "\\[ a_1 + b_1 \\]", "\\[\na_1\n+ b_1\n- c\n\\]", "$$\n\\frac{a}{b}\n= c\n$$", "it costs $5 and $6, not $7"])
  check(text, shown(text).textContent, text);
check("Thus\n\\[\n- a\n\\]\nand", shown("Thus\n\\[\n- a\n\\]\nand").children.map((node) => node.textContent), ["Thus", "\\[\n- a\n\\]", "and"]);
check("\\[ open", shown("\\[ open\nmore").textContent, "[ open\nmore");

check("struck", shown("a ~~b *c*~~ d ~5 to ~6").all("s").map((node) => node.textContent), ["b c"]);
const tasks = shown("- [x] done\n- [ ] not yet\n- [a](https://example.org/q)").all("li");
check("tasks", tasks.map((item) => item.all("input").map((box) => "checked" in box.attributes)), [[true], [false], []]);
check("tasks", tasks.map((item) => item.textContent.trim()), ["done", "not yet", "a"]);

const table = shown("| a | b |\n|:-:|--:|\n| 1 |\n| `x` | 2 | 3 |\n\nafter");
check("table", table.all("tr").map((row) => row.children.map((cell) => cell.textContent)), [["a", "b"], ["1", ""], ["x", "2"]]);
check("sides", table.all("td").map((cell) => cell.attributes.align), ["center", "right", "center", "right"]);
check("after", table.all("p").map((node) => node.textContent), ["after"]);

const fences = {
  "- a\n  ```js\n  - x\n\n  # y\n  ```\n- b": [["- x\n\n# y"], 2],
  "1. a\n   ```\n   x\n     y\n   ```\n2. b": [["x\n  y"], 2],
  "- ```\n  x\n  ```\n- b": [["x"], 2],
  "10. a\n    ~~~sh\n    x\n    ~~~\n11. b": [["x"], 2],
  "- a\n  - b\n    ```\n    x\n    ```\n- c": [["x"], 3],
};
for (const [text, expected] of Object.entries(fences)) {
  const got = shown(text);
  check(text, [got.all("code").map((code) => code.textContent), got.all("li").length], expected);
}
// What is coloured, by kind; the text stays as it is.
const coloured = {
  "```cpp\n#include <a>\nint x = 0x1F; // int\nauto s = \"if\";\n```": ["keyword #include", "keyword int", "number 0x1F", "comment // int", "keyword auto", 'string "if"'],
  "```python\ndef f(): return 'a' # b\nx = d#e\n```": ["keyword def", "keyword return", "string 'a'", "comment # b"],
  "```SQL\nselect 1 FROM t -- c\n```": ["keyword select", "number 1", "keyword FROM", "comment -- c"],
  "```html\n<a href=\"x\">if</a>\n```": ["keyword <a", 'string "x"', "keyword >", "keyword </a", "keyword >"],
  "```js\nreturn `a\n${b}`; /* open\n```": ["keyword return", "string `a\n${b}`", "comment /* open"],
  "```cpp\nint x;": [],
  "```\nint x;\n```": [],
};
for (const [text, expected] of Object.entries(coloured)) {
  const code = shown(text).all("code")[0];
  check(text, code.all("span").map((node) => node.attributes.class + " " + node.textContent), expected);
  check(text, code.textContent, text.replace(/^.*\n/, "").replace(/\n```$/, ""));
}
for (const text of ["```c\n" + "\"a ".repeat(12000) + "\n```", "```c\n" + "/*".repeat(20000) + "\n```", "```py\n" + "`'".repeat(20000) + "\n```", "*".repeat(20000), "[".repeat(19000), "[a](https://x".repeat(1400), "$a".repeat(9000), "https://x(".repeat(1900), "\\(".repeat(9000)]) {
  const begin = Date.now();
  shown(text);
  if (Date.now() - begin > 3000) { ++faults; console.log(`${text.slice(0, 20)}…: ${Date.now() - begin} ms`); }
}
console.log(faults ? `${faults} faults` : "the page shows what Markdown says");
process.exit(faults ? 1 : 0);
