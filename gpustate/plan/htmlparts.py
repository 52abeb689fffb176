"""Style and script of the HTML page, which are part of the page: it loads nothing.

The page works without the script: everything is in it, folded by the browser's own means. The script adds
the filter, and unfolds everything for printing.
"""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;
--bg:#f4f6f8;--card:#fff;--ink:#18212b;--soft:#55606e;--line:#d9dfe6;--hair:#e9edf1;--accent:#1f5fbf;
--add:#0f6b3a;--del:#a3261c;--code:#f1f4f7;
--none:#8b96a5;--reload:#4f83cc;--restart:#c69214;--drain:#d9731a;--reset:#cf4a3a;--reboot:#a81f44;--bad:#a81f44;--good:#2f8f5b}
@media (prefers-color-scheme:dark){:root{
--bg:#0f141a;--card:#171e26;--ink:#e4e9ef;--soft:#9aa6b4;--line:#2b3642;--hair:#222c37;--accent:#7fb0ff;
--add:#7fd8a3;--del:#ff9d92;--code:#1f2832;
--none:#77828f;--reload:#6ea0ea;--restart:#e0b13a;--drain:#ee9145;--reset:#f07565;--reboot:#ee5a80;--bad:#ee5a80;--good:#5cc08a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.page{max-width:1120px;margin:0 auto;padding:28px 24px 48px}
h1{font-size:27px;line-height:1.2;margin:2px 0 6px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 12px}
h3{font-size:13px;margin:16px 0 6px;color:var(--soft);font-weight:600}
p{margin:0 0 8px}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
code{background:var(--code);border-radius:4px;padding:1px 5px;overflow-wrap:anywhere;white-space:pre-wrap}
a{color:var(--accent)}
.soft{color:var(--soft)}
.kicker{color:var(--soft);font-size:13px;letter-spacing:.04em;margin:0}
.top{margin-bottom:20px}
.lead{font-size:16px;max-width:75ch}
.origin{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;font-size:13px;color:var(--soft)}
.origin dd{margin:0;min-width:0}
h3.names{color:var(--ink);font-size:15px;display:flex;gap:4px 14px;flex-wrap:wrap;align-items:baseline}
.facts{display:grid;grid-template-columns:6.5em 1fr;gap:3px 12px;margin-bottom:14px}
.facts dt{color:var(--soft)}.facts dd{margin:0;min-width:0;overflow-wrap:anywhere}
button,input[type=search]{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:6px 12px}
button{cursor:pointer}
button:hover{border-color:var(--accent)}
button[aria-pressed=true]{border-color:var(--accent);box-shadow:inset 0 0 0 1px var(--accent)}
button[aria-pressed=false]{color:var(--soft)}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.skip{position:absolute;left:-9999px}
.skip:focus{left:12px;top:12px;background:var(--card);padding:8px 12px;z-index:1}
section.block{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px}
section.block{margin-bottom:14px}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--hair);vertical-align:top}
th{color:var(--soft);font-weight:600;font-size:13px}
tr:last-child td{border-bottom:0}
.wide{overflow-x:auto}
.tag{display:inline-flex;align-items:center;gap:6px;white-space:nowrap;font-weight:600;font-size:13px}
.tag::before{content:"";width:10px;height:10px;border-radius:3px;background:var(--none)}
.none::before{background:var(--none)}.reload::before{background:var(--reload)}.restart::before{background:var(--restart)}
.drain::before{background:var(--drain)}.reset::before{background:var(--reset)}.reboot::before{background:var(--reboot)}
.bad::before{background:var(--bad)}.good::before{background:var(--good)}
dl{margin:0}
ul.text{margin:0;padding-left:20px}
ul.text li{margin-bottom:4px;overflow-wrap:anywhere}
.tools{display:flex;flex-wrap:wrap;gap:8px;align-items:center;margin-bottom:12px}
.tools input{flex:1 1 240px;min-width:0}
details.group{border:1px solid var(--line);border-radius:10px;margin-bottom:8px;background:var(--card)}
details.group>summary{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:baseline;padding:10px 14px;cursor:pointer;list-style:none}
details.group>summary::-webkit-details-marker{display:none}
details.group>summary::before{content:"\\25B8";color:var(--soft);width:12px}
details.group[open]>summary::before{content:"\\25BE"}
details.group>summary .names{font-weight:600;overflow-wrap:anywhere;flex:1 1 260px;min-width:0}
details.group>summary .what{flex-basis:100%;margin-left:26px;font-size:13px;overflow-wrap:anywhere}
details.group[open]>summary .what{display:none}
details.group[open]>summary{border-bottom:1px solid var(--hair)}
.inside{padding:4px 14px 14px 40px}
.state{padding:10px 0;border-bottom:1px solid var(--hair)}
.state:last-of-type{border-bottom:0}
.state .head{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:baseline}
main,.state,.inside{min-width:0}
.state .tag{white-space:normal;overflow-wrap:anywhere}
.state .head b{font-size:15px}
.changes{margin:4px 0 0;padding:0;list-style:none}
.changes>li{margin:5px 0;overflow-wrap:anywhere}
pre{margin:6px 0;padding:10px 12px;background:var(--code);border-radius:8px;overflow-x:auto;line-height:1.4}
pre .a{color:var(--add)}pre .d{color:var(--del)}pre .h{color:var(--accent)}
.fold>summary{cursor:pointer;color:var(--accent);font-size:13px}
.chips{display:flex;flex-wrap:wrap;gap:4px;list-style:none;margin:0;padding:0;max-height:190px;overflow:auto}
.chips li{background:var(--code);border-radius:5px;padding:0 7px;font-size:13px}
.chips li.hit{outline:2px solid var(--accent)}
footer{color:var(--soft);font-size:13px;margin-top:20px;overflow-wrap:anywhere}
[hidden]{display:none!important}
@media (max-width:640px){.page{padding:18px 14px}.inside{padding-left:14px}}
@media print{
:root:root{color-scheme:light;--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb;--hair:#ddd;--code:#f3f3f3;--add:#0f6b3a;--del:#a3261c;}
body{font-size:10.5pt}.page{max-width:none;padding:0}.tools,.skip{display:none!important}
section.block,details.group{break-inside:auto;border-color:#bbb}.state,tr{break-inside:avoid}
details::details-content{content-visibility:visible;height:auto;display:block}
pre{white-space:pre-wrap}.chips{max-height:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
""".strip()

SCRIPT = """
'use strict';
(function(){
var groups=Array.prototype.slice.call(document.querySelectorAll('details.group'));
var field=document.getElementById('filter'),shown=document.getElementById('shown');
var kinds=Array.prototype.slice.call(document.querySelectorAll('button[data-kind]'));
var texts=groups.map(function(g){return g.textContent.toLowerCase();});
document.querySelectorAll('[data-script]').forEach(function(e){e.hidden=false;});
function filter(){
var words=field.value.toLowerCase().split(/\\s+/).filter(Boolean),off={},nodes=0,count=0;
kinds.forEach(function(b){if(b.getAttribute('aria-pressed')==='false')off[b.dataset.kind]=true;});
groups.forEach(function(g,i){
var ok=!off[g.dataset.kind]&&words.every(function(w){return texts[i].indexOf(w)>=0;});
g.hidden=!ok;
g.querySelectorAll('.chips li').forEach(function(c){
var name=c.textContent.toLowerCase();
c.classList.toggle('hit',words.some(function(w){return name.indexOf(w)>=0;}));});
if(ok){count+=1;nodes+=Number(g.dataset.nodes);}});
shown.textContent=count===groups.length?'':count+' of '+groups.length+' groups shown, '+nodes+' nodes';}
field.addEventListener('input',filter);
kinds.forEach(function(b){b.addEventListener('click',function(){
b.setAttribute('aria-pressed',b.getAttribute('aria-pressed')==='true'?'false':'true');filter();});});
function all(open){return function(){groups.forEach(function(g){if(!g.hidden)g.open=open;});};}
document.getElementById('open').addEventListener('click',all(true));
document.getElementById('close').addEventListener('click',all(false));
var before=[];
addEventListener('beforeprint',function(){
before=Array.prototype.map.call(document.querySelectorAll('details'),function(d){var was=d.open;d.open=true;return [d,was];});});
addEventListener('afterprint',function(){before.forEach(function(p){p[0].open=p[1];});before=[];});
filter();
})();
""".strip()
