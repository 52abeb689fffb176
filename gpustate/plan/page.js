'use strict';
(function(){
var groups=Array.prototype.slice.call(document.querySelectorAll('details.group'));
var field=document.getElementById('filter'),shown=document.getElementById('shown');
var kinds=Array.prototype.slice.call(document.querySelectorAll('button[data-kind]'));
var texts=groups.map(function(g){return g.textContent.toLowerCase();});
document.querySelectorAll('[data-script]').forEach(function(e){e.hidden=false;});
function filter(){
var words=field.value.toLowerCase().split(/\s+/).filter(Boolean),off={},nodes=0,count=0;
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
