// `node formulas.js MATHJAX` reads [[formula, is displayed], ...] and prints those that MathJax cannot typeset.
const mathjax = process.argv[2];
const fails = (jax, error) => { throw error; };
require(`${mathjax}/node-main.js`).init({
  loader: { load: ["input/tex", "output/chtml"] },
  tex: { packages: { "[-]": ["noundefined", "noerrors"] }, formatError: fails },
}).then((MathJax) => {
  const broken = JSON.parse(require("fs").readFileSync(0)).filter(([formula, display]) => {
    try {
      return !MathJax.tex2chtml(formula, { display });
    } catch (error) {
      return true;
    }
  });
  process.stdout.write(JSON.stringify(broken));
});
