"""Common English words of five letters, for Wordle."""

from __future__ import annotations

_TEXT = """
about above actor adult after again agent agree ahead alarm album alert alive allow alone along alter among anger angle angry
apart apple apply arena argue arise armor array aside avoid award aware bacon badge baker basic basin beach beard beast began
begin being below bench berry birth black blade blame blank blast blaze blend blind block blood bloom board boast bonus boost
booth brain brake brand brave bread break breed brick bride brief bring broad broom brown brush build bunch burst cabin cable
camel candy carry catch cause cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill
choir claim class clean clear clerk climb clock close cloth cloud coach coast color coral couch cough count court cover crack
craft crane crash cream crowd crown curve cycle daily dairy dance death delay dense depth diary dirty doubt dozen draft drain
drama dream dress drift drill drink drive eager eagle early earth eight elbow elder empty enemy enjoy enter equal error event
every exact exist extra faith false fancy favor feast fence fever field fifth fight final flame flash fleet flesh float flock
flood floor flour fluid focus force forty found frame fresh front frost fruit funny ghost giant given glass globe glory glove
grace grade grain grand grape graph grass great green greet grief group grown guard guess guest guide habit happy harsh heart
heavy hello hobby honey honor horse hotel house human humor image index inner issue ivory jelly jewel joint judge juice kneel
knife knock known label labor large laser later laugh layer learn lemon level light limit linen liver local loose lucky lunch
magic major maple march match mayor medal metal minor model money month moral motor mount mouse mouth movie music nerve never
night noise north novel nurse ocean offer olive onion opera orbit order organ other ought outer paint panel paper party peace
peach pearl pedal penny phase phone photo piano piece pilot pinch pitch pizza place plain plane plant plate point polar porch
pound power press price pride prime print prize proof proud pulse pupil purse queen query quest quick quiet quite quote radar
radio raise ranch range rapid ratio reach react ready realm rebel refer relax reply rider ridge rifle right rival river robot
rocky roman rough round route royal rural salad sauce scale scene scent scope score scout sense serve seven shade shake shape
share shark sharp sheep sheet shelf shell shift shine shirt shock shoot shore short shout siege sight silly skill skirt sleep
slice slide slope small smart smell smile smoke snake solar solid solve sound south space spare spark speak speed spell spend
spice spike spoon sport spray stack staff stage stain stair stake stamp stand stare start state steam steel steep stick still
stock stone storm story stove straw sugar suite sunny sweet swift swing sword table taste teach thank theme thick thief thing
think third thorn throw thumb tiger tight title toast today token tooth topic torch total touch tough tower trace track trade
trail train treat trend trial tribe trick trout truck trunk trust truth twice twist uncle under union unity until upper urban
usual valid value vapor video virus visit vital vivid vocal voice wagon waste watch water weigh whale wheat wheel where which
while white whole widow woman world worry worth wound wrist write wrong yacht young youth zebra
"""
WORDS: tuple[str, ...] = tuple(_TEXT.split())
